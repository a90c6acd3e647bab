"""The front door for trainer configurations (Cerebras, "Automatic Job Restart"): each becomes a phase.

Owns what such a configuration says about restarts; all of it is handed to the phase's command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prefect_ft.config.fields import shown, unknown_key
from prefect_ft.config.source import Document
from prefect_ft.config.yaml_text import FieldPath, dotted

_KEY = "trainer"
_BESIDE = ("mode", "command", "nproc_per_worker", "checkpoints", "target_step", "elastic")
"""Keys of a phase that may stand beside `trainer`: at the top for all trainers, in a list's item for one."""


@dataclass(frozen=True, slots=True)
class _Trainer:
    """One configuration, what stands beside it alone, and where both are written."""

    mapping: dict[str, Any]
    at: FieldPath
    beside: dict[str, Any]
    beside_at: FieldPath
    autorestart: object

    @property
    def autorestart_at(self) -> FieldPath:
        return (*self.at, "init", "autorestart")


def phases_of_trainers(document: Document) -> Document:
    """Put phases `trainer-1`, `trainer-2`, … in the place of trainers. Raises `ConfigError`."""
    if document.value.get("phases") is not None:
        raise document.error((_KEY,), "cannot stand beside phases; keep one of the two")
    trainers = _trainers(document)
    _check_restarts(document, trainers)
    shared = {key: document.value[key] for key in _BESIDE if key in document.value}
    rest = {key: value for key, value in document.value.items() if key not in (_KEY, *_BESIDE)}
    phases: list[dict[str, Any]] = []
    origins: dict[FieldPath, FieldPath] = {("phases",): (_KEY,)}
    for index, trainer in enumerate(trainers):
        own = {"params": trainer.mapping, "autorestart": trainer.autorestart}
        phases.append({"name": f"trainer-{index + 1}", **shared, **trainer.beside, **own})
        origins |= _origins(("phases", index), trainer)
    return document.rewritten({**rest, "phases": phases}, origins)


def _origins(phase: FieldPath, trainer: _Trainer) -> dict[FieldPath, FieldPath]:
    """Lead from a phase and its keys to what was written for them."""
    own = {phase: trainer.at, (*phase, "params"): trainer.at, (*phase, "autorestart"): trainer.autorestart_at}
    return own | {
        (*phase, key): (*trainer.beside_at, key) if key in trainer.beside else (key,) for key in _BESIDE
    }


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
    known = (_KEY, *_BESIDE)
    if unknown := [key for key in item if key not in known]:
        raise document.error((*at, unknown[0]), unknown_key(unknown[0], known))
    if _KEY not in item:
        raise document.error((*at, _KEY), "missing; write trainer: {init: …, fit: …}")
    beside = {key: value for key, value in item.items() if key != _KEY}
    return _trainer(document, item[_KEY], (*at, _KEY), beside, at)


def _trainer(
    document: Document, mapping: object, at: FieldPath, beside: dict[str, Any], beside_at: FieldPath
) -> _Trainer:
    if not isinstance(mapping, dict):
        message = f"must be a mapping, like {{init: …, fit: …}}, got {shown(mapping)}"
        raise document.error(at, message)
    init = mapping.get("init")
    if init is not None and not isinstance(init, dict):
        message = f"must be a mapping, like {{autorestart: {{max_num_restarts: 3}}}}, got {shown(init)}"
        raise document.error((*at, "init"), message)
    return _Trainer(mapping, at, beside, beside_at, (init or {}).get("autorestart"))


def _check_restarts(document: Document, trainers: Sequence[_Trainer]) -> None:
    """Refuse a list in which only some restart, and restarts that are said twice."""
    carrying = [trainer.autorestart_at for trainer in trainers if trainer.autorestart is not None]
    lacking = [trainer.autorestart_at for trainer in trainers if trainer.autorestart is None]
    if carrying and lacking:
        message = f"missing, while there is {dotted(carrying[0])}; write it for all trainers, or for none"
        raise document.error(lacking[0], message)
    if carrying and document.value.get("autorestart") is not None:
        message = f"cannot stand beside {dotted(carrying[0])}; keep one of the two"
        raise document.error(("autorestart",), message)
