"""The JSON forms of facts in journals, in replay files and on the wire.

Owns the names and types of the fields, not their meaning. Reading is strict: an unknown field is an error that
names it. Absent and null both mean unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from prefect_ft.errors import ConfigError
from prefect_ft.model import (
    Action,
    Advice,
    Answer,
    AnswerKind,
    AtFault,
    Blame,
    Confidence,
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
from prefect_ft.worker.forms import (
    ANY,
    BOOL,
    INT,
    STRING,
    Form,
    FormError,
    form,
    list_of,
    named,
    object_of,
    or_absent,
    or_null,
    read_fields,
)

MAX_SECONDS = 1e15
"""Far beyond any run, and near enough for arithmetic with floats."""


# -- values, by the names that errors call them ----------------------------------------------------


def _count(value: Any) -> Any:
    if type(value) is int and value >= 0:  # in one call: most of what journals hold is read by it
        return value
    raise FormError("is not a whole number from 0")


WHOLE = named("a whole number", INT)
COUNT = Form("a whole number from 0", _count)
SECONDS = form(
    "a number of seconds from 0", lambda value: type(value) in (int, float) and 0 <= value < MAX_SECONDS
)
TEXT = named("a text", STRING)
FLAG = named("true or false", BOOL)
TEXTS = named("a list of texts", list_of(TEXT))
COUNTS = named("a list of whole numbers from 0", list_of(COUNT))
_RECOVERABLE = form('true, false or "confirm"', lambda value: value == "confirm" or isinstance(value, bool))
_COUNT_BY_NAME = named("an object of whole numbers from 0", object_of(COUNT))


def _label(choices: Any) -> Form:
    """Return the form of a closed choice, a `Literal`."""
    names = get_args(choices)
    return form(f"one of {', '.join(names)}", lambda value: value in names)


def _in_order(value: Any) -> tuple[str, ...]:
    systems = object_of(TEXT).read(value)
    if set(systems) != {str(worker) for worker in range(len(systems))}:
        raise FormError("has a worker too many or too few")
    return tuple(systems[str(worker)] for worker in range(len(systems)))


_PLACEMENT = Form('an object from each worker to its system, {"0": "s0", "1": "s1"}', _in_order)


def _windows(value: Any) -> tuple[tuple[int, int], ...]:
    windows = list_of(COUNTS).read(value)
    if not all(len(window) == 2 and window[0] <= window[1] for window in windows):
        raise FormError("is not a list of windows")
    return tuple([(window[0], window[1]) for window in windows])


WINDOWS = Form("a list of windows, each the first and the last step: [[195, 234]]", _windows)
_STEPS_APART = form("a whole number from 1", lambda value: type(value) is int and value >= 1)


# -- objects ---------------------------------------------------------------------------------------


class FieldError(FormError):
    """A field of an object, or of a nested one, is invalid; `field` is its dotted path."""

    def __init__(self, message: str, field: str) -> None:
        self.message, self.field = message, field
        super().__init__(f"{field}: {message}")


def _fields(value: Any, forms: Mapping[str, Form], need: tuple[str, ...]) -> dict[str, Any]:
    """Read an object's fields, without nulls. Raises FormError, or FieldError with the field's name."""
    if not isinstance(value, Mapping):
        raise FormError("is no object")
    known = {}
    for name, field in value.items():
        if name not in forms:
            raise FieldError(f"unknown field; known are {', '.join(forms)}", name)
        if field is None:
            continue
        try:
            known[name] = forms[name].read(field)
        except FieldError as exc:
            raise FieldError(exc.message, f"{name}.{exc.field}") from exc
        except FormError as exc:
            raise FieldError(f"got {field!r}, expected {forms[name].name}", name) from exc
    for name in need:
        if name not in known:
            raise FieldError("missing", name)
    return known


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in fields.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _without_unknown_fields(value: Any, forms: Mapping[str, Form]) -> Any:
    """Return an object of a journal without fields that this version does not know, also in nested objects."""
    if not isinstance(value, Mapping):
        return value
    known = {name: field for name, field in value.items() if name in forms}
    for name, inner in (("evidence", _EVIDENCE), ("counters", _COUNTERS)):
        if isinstance(field := known.get(name), dict):
            known[name] = {each: field[each] for each in field if each in inner}
    return known


# -- evidence --------------------------------------------------------------------------------------

_EVIDENCE: Mapping[str, Form] = {
    "rule": TEXT,
    "text": TEXT,
    "role": _label(Role),
    "file": TEXT,
    "line": COUNT,
    "hint": TEXT,
}


def _as_evidence(value: Any) -> Evidence:
    return Evidence(**_fields(value, _EVIDENCE, ("rule", "text")))


EVIDENCE = Form("an object", _as_evidence)


def evidence_to_json(evidence: Evidence) -> dict[str, Any]:
    """Return the object, without what is unknown."""
    return _known({name: getattr(evidence, name) for name in _EVIDENCE})


# -- advice ----------------------------------------------------------------------------------------

_ADVICE: Mapping[str, Form] = {
    "class": _label(FailureClass),
    "line": TEXT,
    "reason": TEXT,
    "used": FLAG,
    "instead_of": _label(FailureClass),
    "problem": TEXT,
}


def _as_advice(value: Any) -> Advice:
    fields = _fields(value, _ADVICE, ())
    return Advice(**{_ATTRIBUTES.get(name, name): value for name, value in fields.items()})


ADVICE = Form("an object", _as_advice)


def advice_to_json(advice: Advice) -> dict[str, Any]:
    """Return the object, without what is unknown."""
    return _known({name: getattr(advice, _ATTRIBUTES.get(name, name)) for name in _ADVICE})


# -- incidents -------------------------------------------------------------------------------------

_INCIDENT: Mapping[str, Form] = {
    "t": SECONDS,
    "kind": _label(Kind),
    "attempt": COUNT,
    "worker": COUNT,
    "system": TEXT,
    "systems": TEXTS,
    "blame": _label(Blame),
    "step": COUNT,
    "seen_step": COUNT,
    "baseline_step": COUNT,
    "verified": COUNTS,
    "started_from": COUNT,
    "counted": FLAG,
    "reached": COUNT,
    "reached_every": _STEPS_APART,
    "sample": TEXT,
    "exit_code": WHOLE,
    "signal": WHOLE,
    "class": _label(FailureClass),
    "signature": TEXT,
    "recoverable": _RECOVERABLE,
    "confidence": _label(Confidence),
    "log": TEXTS,
    "device": TEXT,
    "code": TEXT,
    "severity": _label(Severity),
    "healed": FLAG,
    "reported": COUNTS,
    "stage": _label(Stage),
    "stage_step": COUNT,
    "evidence": EVIDENCE,
    "advice": ADVICE,
}
_ATTRIBUTES: Mapping[str, str] = {"class": "failure_class"}
"""Fields whose name in JSON is a keyword of Python."""

INCIDENT_FIELDS = frozenset(_INCIDENT)


def _as_incident(value: Any) -> Incident:
    fields = _fields(value, _INCIDENT, ("t", "kind"))
    if fields["kind"] == "device_fault":
        for name in ("device", "code", "severity"):
            if name not in fields:
                raise FieldError("a device_fault has to say it", name)
    return Incident(**{_ATTRIBUTES.get(name, name): value for name, value in fields.items()})


INCIDENT = Form("an incident", lambda value: _as_incident(_without_unknown_fields(value, _INCIDENT)))
"""That of a journal, to which later versions may have added fields."""


def incident_to_json(incident: Incident) -> dict[str, Any]:
    """Return the object, without what is unknown."""
    line = _known({name: getattr(incident, _ATTRIBUTES.get(name, name)) for name in _INCIDENT})
    if not incident.systems:
        line.pop("systems")
    if not incident.log:
        line.pop("log")
    if incident.evidence is not None:
        line["evidence"] = evidence_to_json(incident.evidence)
    if incident.advice is not None:
        line["advice"] = advice_to_json(incident.advice)
    return line


def incident_from_json(value: Mapping[str, Any]) -> Incident:
    """Read an object that a user may have written; raises ConfigError."""
    try:
        return _as_incident(value)
    except FieldError as exc:
        raise ConfigError(exc.message, field=exc.field) from exc


# -- decisions -------------------------------------------------------------------------------------

_COUNTERS: Mapping[str, Form] = {
    "failures_without_progress": COUNT,
    "consecutive_suspensions": COUNT,
    "consecutive_unconditional": COUNT,
    "worker_replacements": COUNT,
    "preemptions": COUNT,
    "hand_overs": COUNT,
    "same_failure": COUNT,
    "same_device_fault": _COUNT_BY_NAME,
    "suspects": _COUNT_BY_NAME,
}
COUNTERS = Form("an object", lambda value: Counters(**_fields(value, _COUNTERS, ())))

_AT_FAULT: Mapping[str, Form] = {
    "what": TEXT,
    "class": TEXT,
    "steps": COUNTS,
    "systems": TEXTS,
    "checkpoint": COUNT,
    "text": TEXT,
}


def _as_at_fault(value: Any) -> AtFault:
    known = (
        {name: value[name] for name in value if name in _AT_FAULT} if isinstance(value, Mapping) else value
    )
    fields = _fields(known, _AT_FAULT, ("what", "text"))
    return AtFault(**{_ATTRIBUTES.get(name, name): value for name, value in fields.items()})


AT_FAULT = Form("an object that says what is at fault", _as_at_fault)


def at_fault_to_json(found: AtFault) -> dict[str, Any]:
    """Return the object, without what is unknown."""
    return _known({name: getattr(found, _ATTRIBUTES.get(name, name)) for name in _AT_FAULT})


_DECISION: Mapping[str, Form] = {
    "n": COUNT,
    "rule": TEXT,
    "action": _label(Action),
    "isolate": TEXTS,
    "recreate": COUNTS,
    "placement": _PLACEMENT,
    "delay_s": SECONDS,
    "resume_step": COUNT,
    "skip_steps": WINDOWS,
    "at_fault": AT_FAULT,
    "counters": COUNTERS,
    "reason": TEXT,
}


def _as_decision(value: Any) -> Decision:
    required = tuple(name for name in _DECISION if name not in ("resume_step", "skip_steps", "at_fault"))
    return Decision(**_fields(value, _DECISION, required))


DECISION = Form("a decision", lambda value: _as_decision(_without_unknown_fields(value, _DECISION)))
"""That of a journal, to which later versions may have added fields."""


def counters_to_json(counters: Counters) -> dict[str, Any]:
    """Return the object."""
    return {name: _plain(getattr(counters, name)) for name in _COUNTERS}


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
        "skip_steps": [list(window) for window in decision.skip_steps],
        "at_fault": None if decision.at_fault is None else at_fault_to_json(decision.at_fault),
        "counters": counters_to_json(decision.counters),
        "reason": decision.reason,
    }


# -- answers ---------------------------------------------------------------------------------------

_ANSWER: Mapping[str, Form] = {
    "answer": _label(AnswerKind),
    "action": or_absent(or_null(_label(Action))),
    "isolate": TEXTS,
    "by": or_absent(ANY),
}


def answer_from_json(value: Mapping[str, Any]) -> Answer | None:
    """Read a person's answer; None: it is not a valid one."""
    try:
        fields = read_fields(_ANSWER, value)
    except FormError:
        return None
    fields["by"] = str(fields.get("by") or "")
    answer = Answer(**fields)
    says_nothing = answer.answer == "change" and answer.action is None and not answer.isolate
    return None if says_nothing else answer
