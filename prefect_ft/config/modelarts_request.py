"""The front door for a whole request of ModelArts: `metadata`, `algorithm` and `spec` become a job.

Owns which of its fields have a counterpart here; a warning names each of the others. Nothing is read from OBS or
written there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prefect_ft.config import beside
from prefect_ft.config.fields import MAX_COUNT, shown
from prefect_ft.config.source import Document
from prefect_ft.config.yaml_text import FieldPath

METADATA = ("id", "description", "workspace_id", "create_time", "user_name", "training_experiment_reference")
"""The keys of `metadata` besides `name` and `annotations`, which have no counterpart."""

_PHASE = "train"
_CODE_DIR, _BOOT_FILE, _COMMAND = "code_dir", "boot_file", "command"
_ALGORITHM, _RESOURCE, _NODES = ("algorithm",), ("spec", "resource"), ("spec", "resource", "node_count")
NO_COUNTERPART = "has no effect: there is no counterpart"
"""The warning about a field that is not used."""

_NOT_FETCHED = "is not fetched from OBS"
_READ = {_CODE_DIR, _BOOT_FILE, _COMMAND, "parameters", "inputs", "outputs", "environments"}


class _Handed(NamedTuple):
    """A value that the script gets: an argument, or a variable of its environment."""

    name: str
    value: str
    is_variable: bool = False


@dataclass(slots=True)
class _Rewriting:
    """The result for a request."""

    document: Document
    value: dict[str, Any]
    origins: dict[FieldPath, FieldPath] = field(default_factory=dict)
    warnings: list[tuple[FieldPath, str]] = field(default_factory=list)

    def warn(self, at: FieldPath, message: str = NO_COUNTERPART) -> None:
        self.warnings.append((at, message))

    def taken(self, key: str) -> Any:
        return self.value.pop(key, None)

    def mapping(self, at: FieldPath, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.document.error(at, f"must be a mapping of keys to values, got {shown(value)}")
        return value

    def items(self, at: FieldPath, value: object) -> Iterator[tuple[FieldPath, dict[str, Any]]]:
        """Return the items of a list of named mappings."""
        if not isinstance(value, list):
            raise self.document.error(at, f"must be a list, like [{{name: …}}], got {shown(value)}")
        for index, each in enumerate(value):
            item = self.mapping((*at, index), each)
            if not isinstance(name := item.get("name"), str) or not name:
                raise self.document.error((*at, index, "name"), f"must be text, got {shown(name)}")
            yield (*at, index), item


def phase_of_algorithm(document: Document) -> Document:
    """Replace a request's keys, after its annotations, by a job's own. Raises `ConfigError`.

    Where there are phases already, the request adds none.
    """
    request = _Rewriting(document, dict(document.value))
    if request.taken("tasks"):
        raise document.error(("tasks",), "is not supported; describe each task in a job of its own")
    if request.taken("endpoints") is not None:
        request.warn(("endpoints",))
    _read_metadata(request, request.taken("metadata") or {})
    algorithm, has_phases = request.taken("algorithm"), request.value.get("phases") is not None
    if algorithm is not None and has_phases:
        raise document.error(_ALGORITHM, "cannot be combined with phases; keep one of the two")
    _read_spec(request, request.mapping(("spec",), request.taken("spec") or {}))
    if not has_phases:
        _add_phase(request, request.mapping(_ALGORITHM, algorithm or {}))
    return document.rewritten(request.value, request.origins, request.warnings)


def _read_metadata(request: _Rewriting, metadata: dict[str, Any]) -> None:
    for key in METADATA:
        if key in metadata:
            request.warn(("metadata", key))
    if "name" in metadata and "name" in request.value:
        request.warn(("metadata", "name"), "has no effect beside name")
    elif "name" in metadata:
        request.value["name"] = metadata["name"]
        request.origins["name",] = ("metadata", "name")


# -- spec ------------------------------------------------------------------------------------------------


def _read_spec(request: _Rewriting, spec: dict[str, Any]) -> None:
    resource = request.mapping(_RESOURCE, spec.get("resource", {}))
    for key in spec:
        if key != "resource":
            request.warn(("spec", key))
    for key in resource:
        if key == "flavor_id":
            request.warn(
                (*_RESOURCE, key), "only says whose fault codes are known; name systems in infrastructure"
            )
        elif key != "node_count":
            request.warn((*_RESOURCE, key))
    if "node_count" in resource:
        _read_nodes(request, resource["node_count"])


def _read_nodes(request: _Rewriting, nodes: object) -> None:
    if not isinstance(nodes, int) or isinstance(nodes, bool) or not 1 <= nodes <= MAX_COUNT:
        raise request.document.error(_NODES, f"must be a whole number from 1, got {shown(nodes)}")
    written = request.value.get("infrastructure")
    if written is None:
        systems = [f"node-{number}" for number in range(min(nodes, _MAX_NODES))]
        request.value["infrastructure"] = {"systems": systems, "workers": nodes}
        request.origins |= {("infrastructure",): _NODES, ("infrastructure", "workers"): _NODES}
        if nodes > 1:
            request.warn(_NODES, f"is {nodes} workers on this machine; name systems in infrastructure")
    elif isinstance(written, dict) and "workers" not in written:
        request.value["infrastructure"] = {**written, "workers": nodes}
        request.origins["infrastructure", "workers"] = _NODES
    elif isinstance(written, dict) and written["workers"] != nodes:
        request.warn(_NODES, "has no effect beside infrastructure.workers")


_MAX_NODES = 4096
"""The most systems to make up for nodes; more are taken for a mistake."""


# -- algorithm -------------------------------------------------------------------------------------------


def _add_phase(request: _Rewriting, algorithm: dict[str, Any]) -> None:
    """Make the request's one phase from its algorithm, and from the keys at the top."""
    document = request.document
    request.value.setdefault("name", beside.name_for(document, "job"))
    model_dir = request.value.setdefault("model_dir", f"runs/{request.value['name']}")
    written = {key: request.taken(key) for key in beside.KEYS if key in request.value}
    for key in algorithm:
        if key not in _READ:
            request.warn((*_ALGORITHM, key))
    outputs = list(_outputs(request, algorithm, model_dir))
    handed = [*_parameters(request, algorithm), *_inputs(request, algorithm), *outputs]
    phase: dict[str, Any] = {"name": _PHASE}
    words = _command(
        request, algorithm, written.get("command"), [each for each in handed if not each.is_variable]
    )
    if words is not None:
        phase["command"] = words
    if written.get("mode") != "eval":
        phase["checkpoints"] = {"path": _saves(request, written, outputs, model_dir)}
    request.value["phases"] = [{**phase, **{key: item for key, item in written.items() if key != "command"}}]
    _add_environment(request, algorithm, [each for each in handed if each.is_variable])
    request.origins |= {("phases", 0, key): (key,) for key in written}
    request.origins.setdefault(("phases", 0, "command"), ("command",))
    request.origins["phases",] = _ALGORITHM


def _saves(request: _Rewriting, written: dict[str, Any], outputs: list[_Handed], model_dir: object) -> str:
    """Return where to look for checkpoints: in the first output."""
    if outputs:
        return outputs[0].value
    path = os.path.join(str(model_dir), "checkpoints")
    if "checkpoints" not in written and request.value.get("autorestart") is not None:
        request.warn(
            ("checkpoints",), f"missing, and there are no outputs; checkpoints are looked for in {path}"
        )
    return path


def _command(
    request: _Rewriting, algorithm: dict[str, Any], written: object, handed: list[_Handed]
) -> object:
    """Return the words that start the training; None: there are none."""
    arguments = [f"--{each.name}={each.value}" for each in handed]
    given = [key for key in (_COMMAND, _BOOT_FILE) if algorithm.get(key)]
    if algorithm.get(_CODE_DIR):
        message = f"{_NOT_FETCHED}; what it holds is looked for where the command runs"
        request.warn((*_ALGORITHM, _CODE_DIR), message)
    if written is not None:
        for key in given:
            request.warn((*_ALGORITHM, key), "has no effect beside command")
        return [*written, *arguments] if isinstance(written, (list, tuple)) and written else written
    if not given:
        return None
    at, text = (*_ALGORITHM, given[0]), algorithm[given[0]]
    if not isinstance(text, str):
        raise request.document.error(at, f"must be text, got {shown(text)}")
    request.origins["phases", 0, "command"] = at
    if given[0] == _BOOT_FILE:
        return ["python", _below(text, algorithm.get(_CODE_DIR)), *arguments]
    return ["sh", "-c", f'{text} "$@"', "sh", *arguments] if arguments else ["sh", "-c", text]


def _below(boot_file: str, code_dir: object) -> str:
    """Return the path of a boot file in its code directory."""
    prefix = f"{code_dir.rstrip('/')}/" if isinstance(code_dir, str) else None
    if prefix is not None and boot_file.startswith(prefix):
        return boot_file[len(prefix) :]
    return os.path.basename(boot_file) if boot_file.startswith(("/", "obs:")) else boot_file


def _parameters(request: _Rewriting, algorithm: dict[str, Any]) -> Iterator[_Handed]:
    for at, item in request.items((*_ALGORITHM, "parameters"), algorithm.get("parameters") or []):
        value = item.get("value", "")
        if value is None or isinstance(value, (dict, list)):
            raise request.document.error((*at, "value"), f"must be text or a number, got {shown(value)}")
        yield _Handed(item["name"], str(value).lower() if isinstance(value, bool) else str(value))


def _inputs(request: _Rewriting, algorithm: dict[str, Any]) -> Iterator[_Handed]:
    """Pass on where inputs are on this machine, for those with a path."""
    for at, item in request.items((*_ALGORITHM, "inputs"), algorithm.get("inputs") or []):
        local = item.get("local_dir")
        if isinstance(local, str) and local:
            request.warn(at, f"{_NOT_FETCHED}; the script is handed {local}")
            yield _Handed(item["name"], local, item.get("access_method") == "env")
        else:
            message = (
                f"{_NOT_FETCHED}; write local_dir, where it is, for the script to be handed {item['name']}"
            )
            request.warn(at, message)


def _outputs(request: _Rewriting, algorithm: dict[str, Any], model_dir: object) -> Iterator[_Handed]:
    """Pass on where outputs go, a directory of this machine."""
    folder = os.path.dirname(os.path.abspath(beside.file_of(request.document) or "."))
    for at, item in request.items((*_ALGORITHM, "outputs"), algorithm.get("outputs") or []):
        local = item.get("local_dir")
        if not isinstance(local, str) or not local:
            local = os.path.join(folder, os.path.expanduser(str(model_dir)), "outputs", item["name"])
        request.warn(at, f"is not written to OBS; the script is handed {local}")
        yield _Handed(item["name"], local, item.get("access_method") == "env")


def _add_environment(request: _Rewriting, algorithm: dict[str, Any], handed: list[_Handed]) -> None:
    environments = request.mapping((*_ALGORITHM, "environments"), algorithm.get("environments") or {})
    added = {**environments, **{each.name: each.value for each in handed}}
    written = request.value.get("env") or {}
    if added and isinstance(written, dict):
        request.value["env"] = {**added, **written}
        led = [name for name in environments if name not in written]
        request.origins |= {("env", name): (*_ALGORITHM, "environments", name) for name in led}
