"""The front door for trainer configurations (Cerebras, "Automatic Job Restart"): each becomes a phase.

Owns what such a configuration says about restarts, checkpoints and its end. The command gets all of it except
`autorestart`: its trainer would restart itself, within an attempt of ours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prefect_ft.config import beside
from prefect_ft.config.fields import shown, unknown_key
from prefect_ft.config.source import Document
from prefect_ft.config.yaml_text import FieldPath, dotted

_KEY = "trainer"
_MODEL_DIR = "model_dir"
"""Where their trainer saves by default; and the key for it, in `init`."""

_CHECKPOINT_NAME = "checkpoint_{step}.mdl"
"""How their trainer names a checkpoint by default."""

_RESUME_ARGS = ["--checkpoint_path", "{resume_from}"]
_MAX_RESTARTS = 128
_MODES = {
    "fit": "train_and_eval",
    "train_and_eval": "train_and_eval",
    "train": "train",
    "validate": "eval",
    "validate_all": "eval",
    "eval": "eval",
    "eval_all": "eval",
}
"""The modes by the words of their commands."""


@dataclass(frozen=True, slots=True)
class _Trainer:
    """One configuration, the keys beside it, and the places of both."""

    mapping: dict[str, Any]
    at: FieldPath
    beside: dict[str, Any]
    beside_at: FieldPath

    @property
    def init(self) -> dict[str, Any]:
        return _mapping(self.mapping.get("init"))

    @property
    def autorestart(self) -> object:
        return self.init.get("autorestart")

    @property
    def autorestart_at(self) -> FieldPath:
        return (*self.at, "init", "autorestart")

    @property
    def model_dir(self) -> object:
        return self.init.get(_MODEL_DIR, _MODEL_DIR)

    @property
    def model_dir_at(self) -> FieldPath:
        return (*self.at, "init", _MODEL_DIR)

    @property
    def handed_over(self) -> dict[str, Any]:
        """What the command gets: a file that its trainer loads."""
        mapping = dict(self.mapping)
        if "autorestart" in self.init:
            mapping["init"] = {key: value for key, value in self.init.items() if key != "autorestart"}
        return {_KEY: mapping}


@dataclass(slots=True)
class _Rewriting:
    """The result for a document: phases, where they come from, and what is not used."""

    phases: list[dict[str, Any]] = field(default_factory=list)
    origins: dict[FieldPath, FieldPath] = field(default_factory=dict)
    warnings: list[tuple[FieldPath, str]] = field(default_factory=list)


def phases_of_trainers(document: Document) -> Document:
    """Replace trainers by phases `trainer-1`, `trainer-2`, …. Raises `ConfigError`."""
    if document.value.get("phases") is not None:
        raise document.error((_KEY,), "cannot be combined with phases; keep one of the two")
    trainers = _trainers(document)
    _check_restarts(document, trainers)
    rest = {key: value for key, value in document.value.items() if key not in (_KEY, *beside.KEYS)}
    becomes = _Rewriting(origins={("phases",): (_KEY,)})
    for index, trainer in enumerate(trainers):
        _add_phase(document, index, trainer, becomes)
    if "name" not in rest:
        rest["name"] = beside.name_for(document, _KEY)
    if "model_dir" not in rest:
        rest["model_dir"] = trainers[0].model_dir
        becomes.origins[("model_dir",)] = trainers[0].model_dir_at
        becomes.warnings += _other_model_dirs(trainers)
    return document.rewritten({**rest, "phases": becomes.phases}, becomes.origins, becomes.warnings)


def _add_phase(document: Document, index: int, trainer: _Trainer, becomes: _Rewriting) -> None:
    shared = beside.at_the_top(document)
    written = {**shared, **trainer.beside}
    mode = written.get("mode", _mode(trainer, written.get("command")))
    has_pool = document.value.get("infrastructure") is not None
    restarts, warnings = _restarts(trainer, has_pool=has_pool)
    found = {"mode": mode, **_saves(trainer, mode, document.value.get("cwd"))}
    own = {"params": trainer.handed_over, "autorestart": restarts}
    becomes.phases.append({"name": f"trainer-{index + 1}", **found, **written, **own})
    unused = _unused(trainer, mode, has_pool=has_pool, saves_elsewhere="checkpoints" in written)
    becomes.warnings += [*warnings, *unused]
    becomes.origins |= _origins(("phases", index), trainer, written)


def _origins(phase: FieldPath, trainer: _Trainer, written: Mapping[str, Any]) -> dict[FieldPath, FieldPath]:
    """Map a phase and its keys to what was written for them."""
    init = (*trainer.at, "init")
    led: dict[FieldPath, FieldPath] = {
        ("params",): trainer.at,
        ("params", _KEY): trainer.at,
        ("autorestart",): trainer.autorestart_at,
        ("checkpoints", "path"): trainer.model_dir_at,
        ("checkpoints", "pattern"): (*init, "checkpoint", "checkpoint_name"),
        ("target_step",): (*init, "loop", "max_steps"),
    }
    led = {way: at for way, at in led.items() if written.get(str(way[0])) is None}
    for key in (*written, "command"):
        led[(key,)] = (*trainer.beside_at, key) if key in trainer.beside else (key,)
    return {phase: trainer.at, **{(*phase, *way): at for way, at in led.items()}}


def _mode(trainer: _Trainer, command: object) -> str:
    """Return what a command does: by its words, else by the configuration."""
    words = command if isinstance(command, (list, tuple)) else ()
    asked = [_MODES[word] for word in words if isinstance(word, str) and word in _MODES]
    if asked:
        return asked[0]
    if trainer.mapping.get("fit") is None and any(_validations(trainer)):
        return "eval"
    has_validation = _mapping(trainer.mapping.get("fit")).get("val_dataloader") is not None
    return "train_and_eval" if has_validation else "train"


def _validations(trainer: _Trainer) -> Iterator[str]:
    return (name for name in ("validate", "validate_all") if trainer.mapping.get(name) is not None)


def _saves(trainer: _Trainer, mode: object, cwd: object) -> dict[str, Any]:
    """Return where a trainer saves, how it loads, and the step of its last checkpoint if it is given."""
    if mode == "eval":
        return {}
    checkpoint, loop = (_mapping(trainer.init.get(name)) for name in ("checkpoint", "loop"))
    path, name = trainer.model_dir, checkpoint.get("checkpoint_name", _CHECKPOINT_NAME)
    if isinstance(cwd, str) and isinstance(path, str):
        path = os.path.join(cwd, path)  # relative, it starts where the command runs
    # If a file of that name exists, theirs appends the time to the step.
    pattern = re.sub(r"\{step[^}]*\}", "{step}*", name, count=1) if isinstance(name, str) else name
    checkpoints = {"path": path, "pattern": pattern}
    found: dict[str, Any] = {"checkpoints": checkpoints, "resume_args": _RESUME_ARGS}
    is_last_saved = bool(checkpoint.get("steps")) and not (loop.get("num_steps") or loop.get("num_epochs"))
    if is_last_saved and loop.get("max_steps") is not None:
        found["target_step"] = loop["max_steps"]
    return found


def _restarts(trainer: _Trainer, *, has_pool: bool) -> tuple[object, list[tuple[FieldPath, str]]]:
    """Return `autorestart` as ours, and the parts of theirs that it does not support."""
    section, at = trainer.autorestart, trainer.autorestart_at
    if not isinstance(section, dict):
        return section, []
    warnings: list[tuple[FieldPath, str]] = []
    most, fewest = _count(section.get("max_num_restarts")), _count(section.get("min_num_csx"))
    if most == 0:
        return None, []
    if most is not None and most > _MAX_RESTARTS:
        section = {**section, "max_num_restarts": _MAX_RESTARTS}
        warnings.append(((*at, "max_num_restarts"), f"is {_MAX_RESTARTS} here, the most, got {shown(most)}"))
    if fewest is not None and fewest > 1 and not has_pool:
        section = {key: value for key, value in section.items() if key != "min_num_csx"}
        message = "has no effect without infrastructure: the command asks for its systems itself"
        warnings.append(((*at, "min_num_csx"), message))
    return section, warnings


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _unused(
    trainer: _Trainer, mode: object, *, has_pool: bool, saves_elsewhere: bool
) -> Iterator[tuple[FieldPath, str]]:
    """Yield warnings about keys with another effect here, or none."""
    init = (*trainer.at, "init")
    cluster = _mapping(_mapping(trainer.init.get("backend")).get("cluster_config"))
    if "num_csx" in cluster and not has_pool:
        message = (
            "has no effect without infrastructure: one worker runs the command, which asks for them itself"
        )
        yield (*init, "backend", "cluster_config", "num_csx"), message
    if mode != "eval":
        yield from _unused_of_training(trainer, init, saves_elsewhere=saves_elsewhere)
        for name in _validations(trainer):
            message = "is executed only where the command does it; write a trainer of its own with mode: eval"
            yield (*trainer.at, name), message


def _unused_of_training(
    trainer: _Trainer, init: FieldPath, *, saves_elsewhere: bool
) -> Iterator[tuple[FieldPath, str]]:
    checkpoint, loop = (_mapping(trainer.init.get(name)) for name in ("checkpoint", "loop"))
    if trainer.autorestart is not None and not (checkpoint.get("steps") or saves_elsewhere):
        message = "missing; without it the trainer saves nothing, and restarts begin from scratch"
        yield (*init, "checkpoint", "steps"), message
    if trainer.autorestart is not None and loop.get("num_steps") is not None:
        message = "the trainer counts them anew from the checkpoint that it loads; write max_steps"
        yield (*init, "loop", "num_steps"), message


def _other_model_dirs(trainers: Sequence[_Trainer]) -> Iterator[tuple[FieldPath, str]]:
    first = trainers[0].model_dir
    for trainer in trainers[1:]:
        if trainer.model_dir != first:
            message = f"run.log is in {shown(first)}, the directory of the first trainer; this one's checkpoints stay"
            yield trainer.model_dir_at, message


def _trainers(document: Document) -> list[_Trainer]:
    written = document.value[_KEY]
    if isinstance(written, dict):
        return [_trainer(document, written, (_KEY,), {}, ())]
    if isinstance(written, list) and written:
        return [_in_item(document, item, (_KEY, index)) for index, item in enumerate(written)]
    got = "an empty list" if isinstance(written, list) else shown(written)
    message = f"must be a mapping, like {{init: …, fit: …}}, or a list of {{trainer: …}}, got {got}"
    raise document.error((_KEY,), message)


def _in_item(document: Document, item: object, at: FieldPath) -> _Trainer:
    """Read an item of a list of trainers."""
    if not isinstance(item, dict):
        raise document.error(at, f"must be {{trainer: …}}, got {shown(item)}")
    known = (_KEY, *beside.KEYS)
    if unknown := [key for key in item if key not in known]:
        raise document.error((*at, unknown[0]), unknown_key(unknown[0], known))
    if _KEY not in item:
        raise document.error((*at, _KEY), "missing; write trainer: {init: …, fit: …}")
    own = {key: value for key, value in item.items() if key != _KEY}
    return _trainer(document, item[_KEY], (*at, _KEY), own, at)


def _trainer(
    document: Document, mapping: object, at: FieldPath, own: dict[str, Any], own_at: FieldPath
) -> _Trainer:
    if not isinstance(mapping, dict):
        message = f"must be a mapping, like {{init: …, fit: …}}, got {shown(mapping)}"
        raise document.error(at, message)
    init = mapping.get("init")
    if init is not None and not isinstance(init, dict):
        message = f"must be a mapping, like {{autorestart: {{max_num_restarts: 3}}}}, got {shown(init)}"
        raise document.error((*at, "init"), message)
    return _Trainer(mapping, at, own, own_at)


def _check_restarts(document: Document, trainers: Sequence[_Trainer]) -> None:
    """Refuse a list in which only some restart, and restarts that are given twice."""
    carrying = [trainer.autorestart_at for trainer in trainers if trainer.autorestart is not None]
    lacking = [trainer.autorestart_at for trainer in trainers if trainer.autorestart is None]
    if carrying and lacking:
        message = f"missing, while there is {dotted(carrying[0])}; write it for all trainers, or for none"
        raise document.error(lacking[0], message)
    if carrying and document.value.get("autorestart") is not None:
        message = f"cannot be combined with {dotted(carrying[0])}; keep one of the two"
        raise document.error(("autorestart",), message)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
