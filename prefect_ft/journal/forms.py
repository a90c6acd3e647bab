"""The JSON forms of facts, as they stand in journals, replay files and on the wire.

Owns names and types of the fields, and nothing of their meaning. Reading is strict: what is not known
is an error that names the field. Absent and null both mean unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from prefect_ft.errors import ConfigError
from prefect_ft.model import (
    Action,
    Answer,
    AnswerKind,
    Blame,
    Counters,
    Decision,
    Evidence,
    FailureClass,
    Incident,
    Kind,
    Role,
    Severity,
    Stage,
)

Reader = Callable[[Any], Any]
"""Turns a JSON value into a field's value; raises ValueError with what is to be written instead."""


MAX_SECONDS = 1e15
"""Far beyond any run, and near enough for arithmetic with floats."""


# -- values ----------------------------------------------------------------------------------------


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("a whole number")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a whole number from 0")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < MAX_SECONDS:
        raise ValueError("a number of seconds from 0")
    return value  # type: ignore[no-any-return]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _recoverable(value: Any) -> Any:
    if value != "confirm" and not isinstance(value, bool):
        raise ValueError('true, false or "confirm"')
    return value


def _label(choices: Any) -> Reader:
    names = get_args(choices)

    def read(value: Any) -> Any:
        if value not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return value

    return read


def _list_of(item: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError("a list")
        try:
            return tuple(item(each) for each in value)
        except ValueError as exc:
            raise ValueError(f"a list, each of it {exc}") from exc

    return read


def _counts_by_name(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise ValueError("an object of whole numbers")
    return {name: _count(count) for name, count in value.items()}


def _placement(value: Any) -> tuple[str, ...]:
    wanted = 'an object from each worker to its system, {"0": "s0", "1": "s1"}'
    if not isinstance(value, dict) or set(value) != {str(worker) for worker in range(len(value))}:
        raise ValueError(wanted)
    return tuple(_text(value[str(worker)]) for worker in range(len(value)))


def _object(form: Callable[[Mapping[str, Any]], Any]) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError("an object")
        return form(value)

    return read


# -- objects ---------------------------------------------------------------------------------------


def known_alone(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a journal's incident or decision without fields that this version does not know, in it and inside it."""
    names = DECISION_FIELDS if line.get("type") == "decision" else INCIDENT_FIELDS
    told = {name: value for name, value in line.items() if name in names}
    for name, inner in (("evidence", _EVIDENCE), ("counters", _COUNTERS)):
        if isinstance(value := told.get(name), dict):
            told[name] = {each: value[each] for each in value if each in inner}
    return told


def _fields(line: Mapping[str, Any], readers: Mapping[str, Reader], need: tuple[str, ...]) -> dict[str, Any]:
    """Read an object's fields without those that are null. Raises ConfigError with the field's name."""
    known = {}
    for name, value in line.items():
        if name not in readers:
            raise ConfigError(f"unknown field; known are {', '.join(readers)}", field=name)
        if value is None:
            continue
        try:
            known[name] = readers[name](value)
        except ConfigError as exc:
            raise ConfigError(exc.message, field=f"{name}.{exc.field}") from exc
        except ValueError as exc:
            raise ConfigError(f"{value!r} is not what belongs here; write {exc}", field=name) from exc
    for name in need:
        if name not in known:
            raise ConfigError("missing", field=name)
    return known


def evidence_to_json(evidence: Evidence) -> dict[str, Any]:
    """Return the object, without what is unknown."""
    return _known({name: getattr(evidence, name) for name in _EVIDENCE})


def evidence_from_json(line: Mapping[str, Any]) -> Evidence:
    """Read the object; raises ConfigError."""
    return Evidence(**_fields(line, _EVIDENCE, ("rule", "text")))


def incident_to_json(incident: Incident) -> dict[str, Any]:
    """Return the object, without what is unknown."""
    line = _known({name: getattr(incident, _ATTRIBUTES.get(name, name)) for name in _INCIDENT})
    if not incident.systems:
        line.pop("systems")
    if not incident.log:
        line.pop("log")
    if incident.evidence is not None:
        line["evidence"] = evidence_to_json(incident.evidence)
    return line


def incident_from_json(line: Mapping[str, Any]) -> Incident:
    """Read the object; raises ConfigError."""
    fields = _fields(line, _INCIDENT, ("t", "kind"))
    if fields["kind"] == "device_fault":
        for name in ("device", "code", "severity"):
            if name not in fields:
                raise ConfigError("a device_fault has to say it", field=name)
    return Incident(**{_ATTRIBUTES.get(name, name): value for name, value in fields.items()})


def counters_to_json(counters: Counters) -> dict[str, Any]:
    """Return the object."""
    return {name: _plain(getattr(counters, name)) for name in _COUNTERS}


def counters_from_json(line: Mapping[str, Any]) -> Counters:
    """Read the object; raises ConfigError."""
    return Counters(**_fields(line, _COUNTERS, ()))


def decision_to_json(decision: Decision) -> dict[str, Any]:
    """Return the object, with every field."""
    return {
        "n": decision.n,
        "rule": decision.rule,
        "action": decision.action,
        "isolate": list(decision.isolate),
        "recreate": list(decision.recreate),
        "placement": {str(worker): system for worker, system in enumerate(decision.placement)},
        "delay_s": decision.delay_s,
        "resume_step": decision.resume_step,
        "counters": counters_to_json(decision.counters),
        "reason": decision.reason,
    }


def decision_from_json(line: Mapping[str, Any]) -> Decision:
    """Read the object; raises ConfigError."""
    required = tuple(name for name in _DECISION if name != "resume_step")
    return Decision(**_fields(line, _DECISION, required))


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in fields.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


# -- the forms -------------------------------------------------------------------------------------

_EVIDENCE: Mapping[str, Reader] = {
    "rule": _text,
    "text": _text,
    "role": _label(Role),
    "file": _text,
    "line": _count,
    "hint": _text,
}

_INCIDENT: Mapping[str, Reader] = {
    "t": _seconds,
    "kind": _label(Kind),
    "attempt": _count,
    "worker": _count,
    "system": _text,
    "systems": _list_of(_text),
    "blame": _label(Blame),
    "step": _count,
    "seen_step": _count,
    "baseline_step": _count,
    "verified": _list_of(_count),
    "started_from": _count,
    "counted": _flag,
    "exit_code": _whole,
    "signal": _whole,
    "class": _label(FailureClass),
    "signature": _text,
    "recoverable": _recoverable,
    "log": _list_of(_text),
    "device": _text,
    "code": _text,
    "severity": _label(Severity),
    "healed": _flag,
    "reported": _list_of(_count),
    "stage": _label(Stage),
    "stage_step": _count,
    "evidence": _object(evidence_from_json),
}
_ATTRIBUTES: Mapping[str, str] = {"class": "failure_class"}
"""Where the name on the wire is a word that Python keeps for itself."""

_COUNTERS: Mapping[str, Reader] = {
    "failures_without_progress": _count,
    "consecutive_suspensions": _count,
    "consecutive_unconditional": _count,
    "worker_replacements": _count,
    "preemptions": _count,
    "same_failure": _count,
    "same_device_fault": _counts_by_name,
    "suspects": _counts_by_name,
}

_DECISION: Mapping[str, Reader] = {
    "n": _count,
    "rule": _text,
    "action": _label(Action),
    "isolate": _list_of(_text),
    "recreate": _list_of(_count),
    "placement": _placement,
    "delay_s": _seconds,
    "resume_step": _count,
    "counters": _object(counters_from_json),
    "reason": _text,
}


INCIDENT_FIELDS, DECISION_FIELDS = frozenset(_INCIDENT), frozenset(_DECISION)
"""The names of an object's fields, for who reads it out of one that holds more."""


def answer_from_json(told: Mapping[str, Any]) -> Answer | None:
    """Read a person's answer; None: it is none."""
    kind, action, isolate, by = (told.get(name) for name in ("answer", "action", "isolate", "by"))
    is_known = kind in get_args(AnswerKind) and (action is None or action in get_args(Action))
    if not is_known or not isinstance(isolate, list) or not all(isinstance(each, str) for each in isolate):
        return None
    if kind == "change" and action is None and not isolate:
        return None
    return Answer(answer=kind, by=str(by or ""), action=action, isolate=tuple(isolate))  # type: ignore[arg-type]
