"""The front door for ModelArts' jobs: `kind`, and `fault-tolerance/…` in `metadata.annotations`.

Owns what these mean in a job's own keys (ModelArts, "Recovering a Training Job" and "Enabling Unconditional
Auto Restart"). `modelarts_request` owns the rest of a request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prefect_ft.config.fields import shown, unknown_key
from prefect_ft.config.modelarts_request import METADATA, NO_COUNTERPART, phase_of_algorithm
from prefect_ft.config.sections import ENVIRONMENT_CLASSES
from prefect_ft.config.source import Document
from prefect_ft.config.yaml_text import FieldPath, dotted

_OTHER_KINDS = ("edge_job", "hetero_job", "mrs_job", "autosearch_job", "diag_job", "visualization_job")
_ANNOTATIONS = ("metadata", "annotations")
_PREFIX = "fault-tolerance/"
_JOB_RETRY = f"{_PREFIX}job-retry-num"
_UNCONDITIONAL = f"{_PREFIX}job-unconditional-retry"
_HANG_RETRY = f"{_PREFIX}hang-retry"
_POD_RETRY = f"{_PREFIX}pod-retry-num"


def _count(value: object) -> int | None:
    if isinstance(value, str) and re.fullmatch("[1-9][0-9]{0,2}", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 1 <= value <= 128 else None


def _truth(value: object) -> bool | None:
    word = str(value).lower() if isinstance(value, (bool, str)) else ""
    return {"true": True, "false": False}.get(word)


_COUNT, _TRUTH = (_count, "a whole number from 1 to 128"), (_truth, "true or false")


class _Annotation(NamedTuple):
    """The field of an annotation; what reads it, `None` where it is invalid; its text."""

    field: FieldPath
    read: Callable[[object], int | None]
    asked: str


_KNOWN: Mapping[str, _Annotation] = {
    _JOB_RETRY: _Annotation(("autorestart", "max_num_restarts"), *_COUNT),
    _UNCONDITIONAL: _Annotation(("autorestart", "unconditional"), *_TRUTH),
    _HANG_RETRY: _Annotation(("suspension", "restart"), *_TRUTH),
    _POD_RETRY: _Annotation(("autorestart", "max_worker_replacements"), *_COUNT),
}


def without_kind(document: Document) -> Document:
    """Remove `kind: job`, the only kind. Raises `ConfigError` for every other one."""
    if (kind := document.value["kind"]) != "job":
        message = f"must be job, got {shown(kind)}; the kinds {', '.join(_OTHER_KINDS)} are not supported"
        raise document.error(("kind",), message)
    return document.rewritten(_without("kind", document.value), {})


def job_of_request(document: Document) -> Document:
    """Replace a request's keys by a job's own. Raises `ConfigError`."""
    if "metadata" in document.value:
        document = restarts_of_annotations(document)
    return phase_of_algorithm(document)


def restarts_of_annotations(document: Document) -> Document:
    """Replace annotations by `autorestart`, `faults` and `suspension.restart`. Raises `ConfigError`."""
    written = _annotations(document)
    said = _said(document, written)
    value = {**document.value, "metadata": _without("annotations", document.value["metadata"])}
    unused: list[tuple[FieldPath, str]] = [
        ((*_ANNOTATIONS, name), NO_COUNTERPART) for name in written if name not in said
    ]
    if not said:
        return document.rewritten(value, {}, unused)
    _check_restarts(document, said)
    section = {_KNOWN[name].field[-1]: meant for name, meant in said.items() if name != _HANG_RETRY}
    section["rebuild_only"] = True
    if not said.get(_UNCONDITIONAL):
        section |= {"restart_on": [*ENVIRONMENT_CLASSES], "environment_only": True}
    value["autorestart"] = section
    if _HANG_RETRY in said:
        value = _with_suspension_restart(value, said[_HANG_RETRY])
    if value.get("faults") is None:
        value["faults"] = {"logs": True, "preset": _preset(value), "detect": "auto"}
        unused += _without_healing(value)
    origins: dict[FieldPath, FieldPath] = {("autorestart",): _ANNOTATIONS, ("faults",): _ANNOTATIONS}
    origins |= {("autorestart", key): _ANNOTATIONS for key in section}
    origins |= {_KNOWN[name].field: (*_ANNOTATIONS, name) for name in said}
    return document.rewritten(value, origins, unused)


def _preset(value: Mapping[str, Any]) -> str:
    """Return the preset of fault codes for the ranks' output: of NPUs, unless the request is for GPUs."""
    spec = value.get("spec")
    resource = spec.get("resource") if isinstance(spec, dict) else None
    flavor = resource.get("flavor_id") if isinstance(resource, dict) else None
    return "nvidia" if isinstance(flavor, str) and "gpu" in flavor.lower() else "ascend"


def _without_healing(value: Mapping[str, Any]) -> Iterator[tuple[FieldPath, str]]:
    """Return the warning about what in-place recovery needs to heal a device."""
    infrastructure = value.get("infrastructure")
    pool = infrastructure if isinstance(infrastructure, dict) else {}
    if pool.get("type", "process") != "process" and not pool.get("heal"):
        message = "a faulty device takes its system out of use, unless infrastructure.heal is a command that resets it"
        yield (*_ANNOTATIONS, _JOB_RETRY), message


def _said(document: Document, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the annotations about fault tolerance."""
    said: dict[str, Any] = {}
    for name, value in written.items():
        if not name.startswith(_PREFIX):
            continue
        if name not in _KNOWN:
            known = [each.removeprefix(_PREFIX) for each in _KNOWN]
            raise document.error((*_ANNOTATIONS, name), unknown_key(name.removeprefix(_PREFIX), known))
        said[name] = _KNOWN[name].read(value)
        if said[name] is None:
            message = f"must be {_KNOWN[name].asked}, got {shown(value)}"
            raise document.error((*_ANNOTATIONS, name), message)
    return said


def _annotations(document: Document) -> dict[str, Any]:
    metadata = _mapping(document, _ANNOTATIONS[:1], document.value["metadata"])
    known = ("annotations", "name", *METADATA)
    if unknown := [key for key in metadata if key not in known]:
        raise document.error(("metadata", unknown[0]), unknown_key(unknown[0], known))
    return _mapping(document, _ANNOTATIONS, metadata.get("annotations", {}))


def _mapping(document: Document, at: FieldPath, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise document.error(at, f"must be a mapping of keys to values, got {shown(value)}")
    return value


def _check_restarts(document: Document, said: Iterable[str]) -> None:
    """Refuse annotations without the one that they require, and restarts that are given twice."""
    if _JOB_RETRY not in said:
        first = next(iter(said))
        raise document.error((*_ANNOTATIONS, first), f'needs {_JOB_RETRY}; write {_JOB_RETRY}: "3"')
    twice = [(_JOB_RETRY, at) for at, _ in _sections(document.value, "autorestart")]
    if _HANG_RETRY in said:
        suspensions = _sections(document.value, "suspension")
        twice += [
            (_HANG_RETRY, (*at, "restart"))
            for at, section in suspensions
            if isinstance(section, dict) and "restart" in section
        ]
    for name, at in twice:
        other = dotted(document.origin(at))
        raise document.error((*_ANNOTATIONS, name), f"cannot be combined with {other}; keep one of the two")


def _sections(value: Mapping[str, Any], name: str) -> Iterator[tuple[FieldPath, Any]]:
    """Return a section of the job and those of its phases, where they exist."""
    if value.get(name) is not None:
        yield (name,), value[name]
    for index, phase in enumerate(_phases(value)):
        if isinstance(phase, dict) and phase.get(name) is not None:
            yield ("phases", index, name), phase[name]


def _with_suspension_restart(value: Mapping[str, Any], restart: bool) -> dict[str, Any]:
    """Set it in the job's section, and in those of phases, which replace the job's as a whole."""
    said = {**value, "suspension": _restarting(value.get("suspension", {}), restart)}
    if phases := _phases(value):
        said["phases"] = [
            {**phase, "suspension": _restarting(phase["suspension"], restart)}
            if isinstance(phase, dict) and "suspension" in phase
            else phase
            for phase in phases
        ]
    return said


def _restarting(section: Any, restart: bool) -> Any:
    return {**section, "restart": restart} if isinstance(section, dict) else section


def _phases(value: Mapping[str, Any]) -> list[Any]:
    phases = value.get("phases")
    return phases if isinstance(phases, list) else []


def _without(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key != name}
