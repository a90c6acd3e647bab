"""The lines of a journal: one record for each type, and the only place that knows types by their names.

The one table by which lines are read and written, and which tests compare with docs/journal.md. Fields that every
reader relies on are checked; another field with a wrong value is unknown, like one that an earlier version did not
write. A line of a type that this version does not know is kept as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar, TypeVar

from typing_extensions import Self

from prefect_ft.errors import JournalError
from prefect_ft.journal.forms import (
    COUNT,
    COUNTS,
    DECISION,
    FLAG,
    INCIDENT,
    TEXT,
    TEXTS,
    WINDOWS,
    decision_to_json,
    incident_to_json,
)
from prefect_ft.model import Decision, Incident, Window
from prefect_ft.records import Record, absent, of, record, written
from prefect_ft.worker.forms import (
    NUMBER,
    OBJECT,
    Form,
    FormError,
    form,
    list_of,
    object_of,
    or_null,
    read_fields,
)

T = TypeVar("T")

# -- what lines are made of -------------------------------------------------------------------------


class Misread(Record):
    """An incident or a decision that cannot be read; its history cannot be trusted."""

    why: str = of(TEXT)


def _is_utc(value: Any) -> bool:
    try:
        return datetime.fromisoformat(value.replace("Z", "+00:00")).tzinfo is not None
    except (AttributeError, TypeError, ValueError):
        return False


def _time(value: Any) -> Any:
    if type(value) in (int, float) and abs(value) < 1e12:
        return value
    raise FormError("is no time")


def _unchecked(its: Form) -> Form:
    """Return the form of an optional field: a value of another form reads as unknown, None."""
    strictly = its.read

    def read(value: Any) -> Any:
        try:
            return None if value is None else strictly(value)
        except FormError:
            return None

    return Form(its.name, read)


def _span(value: Any) -> Any:
    times = TIMES.read(value)
    if len(times) != 2:
        raise FormError("is no pair")
    return times


def _or_misread(its: Form) -> Form:
    """Return the form of facts that may be unreadable: that spoils the history and not the line."""

    def read(value: Any) -> Any:
        try:
            return its.read(value)
        except FormError as exc:
            return Misread(why=str(exc))

    return Form(its.name, read)


def _understood(facts: T | Misread) -> T:
    if isinstance(facts, Misread):
        raise JournalError(f"the journal is damaged: {facts.why}")
    return facts


UTC = form("a time of a zone, ISO 8601", _is_utc)
TIME = Form("seconds, below 0 before the phase began", _time)
TIMES = list_of(TIME)
SPAN = Form("[since, until]", _span)
STEP = or_null(COUNT)

ANY_COUNT, ANY_TEXT, ANY_FLAG, ANY_TIME = (_unchecked(each) for each in (COUNT, TEXT, FLAG, TIME))
ANY_NUMBER, ANY_COUNTS, ANY_TEXTS = (_unchecked(each) for each in (NUMBER, COUNTS, TEXTS))
ALL_OR_SINCE = Form("seconds or null", lambda value: 0.0 if value is None else ANY_NUMBER.read(value))


class Sign(Record):
    """A piece of evidence that ranks hang; `rank` is None where it is against all."""

    kind: str | None = absent(ANY_TEXT)
    rank: int | None = absent(ANY_COUNT)
    text: str = of(TEXT)
    lasted_s: float | None = absent(ANY_TIME)

    def write(self) -> dict[str, Any]:
        return dict(self.__dict__)


class Lost(Record):
    """A line that was damaged and has been removed: its number from 1, the offset of its first byte, and why."""

    line: int = of(COUNT)
    offset: int = of(COUNT)
    why: str = of(TEXT)


# -- lines ------------------------------------------------------------------------------------------


class Line(Record):
    """Any line of a journal. `t` and `utc` are the time of writing: see `MemoryJournal.append`."""

    type: ClassVar[str]
    t: float = of(TIME, default=0.0)
    utc: str = of(UTC, default="")

    def stamped(self, t: float, utc: str) -> Self:
        """Return the line as written at a time."""
        return self.but(t=t, utc=utc)

    def fields_to_json(self) -> dict[str, Any]:
        """Return its fields as a JSON object, without type and time."""
        return {name: written(getattr(self, name)) for name in self.forms if name not in Line.forms}

    def write(self) -> dict[str, Any]:
        """Return the line as a JSON object, as it stands in the journal but for its checksum."""
        return {"type": self.type, "t": self.t, "utc": self.utc, **self.fields_to_json()}


class PhaseLine(Line):
    """The first: what the phase is. `saves_since_s`: 0 where all checkpoints count, None where it does not say."""

    type = "phase"
    run: str = of(TEXT)
    job: str = of(TEXT)
    phase: str = of(TEXT)
    index: int | None = absent(ANY_COUNT)
    mode: str | None = absent(ANY_TEXT)
    systems: tuple[str, ...] | None = absent(or_null(TEXTS))
    isolated: tuple[str, ...] | None = absent(or_null(TEXTS))
    workers: int | None = absent(ANY_COUNT)
    ranks_per_worker: int | None = absent(ANY_COUNT)
    target_step: int | None = absent(STEP)
    limits: Mapping[str, int | None] | None = absent(or_null(object_of(STEP)))
    saves_since_s: float | None = absent(ALL_OR_SINCE)
    format: int | None = absent(ANY_COUNT)
    version: str | None = absent(ANY_TEXT)

    def fields_to_json(self) -> dict[str, Any]:
        fields = super().fields_to_json()
        if self.saves_since_s is None:
            del fields["saves_since_s"]
        elif not self.saves_since_s:
            fields["saves_since_s"] = None
        return fields


class EarlierSavesLine(Line):
    """The checkpoint directory held checkpoints before the run began."""

    type = "earlier-saves"
    count: int | None = absent(ANY_COUNT)
    step: int | None = absent(ANY_COUNT)
    resume_step: int | None = absent(ANY_COUNT)


class AttemptLine(Line):
    """All ranks of an attempt have been started. Agents keep its fields as their note."""

    type = "attempt"
    attempt: int = of(COUNT)
    token: tuple[int, ...] | None = absent(ANY_COUNTS)
    placement: tuple[str, ...] = of(TEXTS)
    start_counts: tuple[tuple[int, ...], ...] | None = absent(_unchecked(list_of(COUNTS)))
    resume_step: int | None = absent(STEP)
    resume_path: str | None = absent(ANY_TEXT)
    decided_step: int | None = absent(ANY_COUNT)
    started_from: int | None = absent(ANY_COUNT)
    why: str | None = absent(ANY_TEXT)
    passed_over: Mapping[str, str] | None = absent(_unchecked(object_of(TEXT)))
    decisions: int | None = absent(ANY_COUNT)
    begun_t: float | None = absent(or_null(TIME))

    @classmethod
    def noted(cls, note: Mapping[str, Any]) -> Self:
        """Return the line that an agent's note of the attempt is; raises FormError."""
        forms = {name: its for name, its in cls.forms.items() if name not in Line.forms}
        return cls(**read_fields(forms, note))


NOT_RESUMED = "not-resumed"
"""Warned of: an attempt was given a checkpoint, and began anew."""

NONE_COUNTS = ("unrecognised", "nothing-saved")
"""Warned of: no checkpoint counts, which ends with the next one that does."""


class WarningLine(Line):
    """Something that costs work, or will once a failure comes."""

    type = "warning"
    attempt: int = of(COUNT)
    what: str = of(TEXT)
    text: str = of(TEXT)


FIRST_STEP = "first-step"
"""What has come up with the first step that a rank of an attempt reports."""


class CameUpLine(Line):
    """How far the ranks of an attempt have come up."""

    type = "came-up"
    attempt: int = of(COUNT)
    worker: int | None = absent(ANY_COUNT)
    what: str = of(TEXT)
    at_t: float = of(TIME)


class CheckpointLine(Line):
    """A checkpoint has been verified."""

    type = "checkpoint"
    written_t: float = of(TIME)
    mtime: float | None = absent(ANY_NUMBER)
    size: int | None = absent(ANY_COUNT)
    device: int | None = absent(ANY_COUNT)
    inode: int | None = absent(ANY_COUNT)
    counted: bool | None = absent(ANY_FLAG, default=False)
    attempt: int | None = absent(ANY_COUNT)
    step: int = of(COUNT)
    path: str | None = absent(ANY_TEXT)


class ReportLine(Line):
    """A fault, a loss or a preemption was reported, or a restart within the processes."""

    type = "report"
    source: str | None = absent(ANY_TEXT)
    report: Incident = of(INCIDENT)

    def fields_to_json(self) -> dict[str, Any]:
        return {**super().fields_to_json(), "report": incident_to_json(self.report)}


class WarmLine(Line):
    """What a worker keeps ready for the next restart has changed."""

    type = "warm"
    worker: int = of(COUNT)
    modules: int = of(COUNT)
    parked: int = of(COUNT)
    memory_kb: int = of(COUNT)
    left_out: Mapping[str, str] | None = absent(_unchecked(object_of(TEXT)))
    why_cold: str | None = absent(or_null(TEXT))


class ComebackLine(Line):
    """An orchestrator has come back to the phase."""

    type = "comeback"
    epoch: int = of(COUNT)
    by_hand: bool = of(FLAG)
    silent_s: float | None = absent(ANY_TIME)
    attempt: int | None = absent(ANY_COUNT)
    goes_on: bool | None = absent(ANY_FLAG)
    adopted: tuple[int, ...] | None = absent(ANY_COUNTS)
    left: tuple[int, ...] | None = absent(ANY_COUNTS)
    unwatched_s: float | None = absent(ANY_TIME)
    format: int | None = absent(ANY_COUNT)
    version: str | None = absent(ANY_TEXT)


class TenureLine(Line):
    """The phase has these systems until `until`, where a scheduler lends them."""

    type = "tenure"
    name: str = of(TEXT)
    systems: tuple[str, ...] = of(TEXTS)
    until: str | None = absent(_unchecked(UTC))


class HandOverLine(Line):
    """An orchestrator has left the phase to the next tenure. `is_clean`: it did so because time was up, ranks stopped.

    `had_ended`: no attempt ran. What follows `step` is about the attempt, as in `incident`.
    """

    type = "hand-over"
    attempt: int = of(COUNT)
    reason: str = of(TEXT)
    is_clean: bool | None = absent(ANY_FLAG)
    had_ended: bool | None = absent(ANY_FLAG)
    step: int | None = absent(STEP)
    ended_t: float | None = absent(or_null(TIME))
    deaths: tuple[float, ...] | None = absent(or_null(TIMES), default=None)
    fences: tuple[tuple[float, float], ...] | None = absent(or_null(list_of(SPAN)), default=None)
    first_step: int | None = absent(STEP, default=None)
    last_step: int | None = absent(STEP, default=None)
    healing_s: float | None = absent(or_null(TIME), default=None)
    reaped_t: float | None = absent(or_null(TIME), default=None)

    @property
    def beside(self) -> dict[str, Any]:
        """Return what is kept beside the incident by which the attempt is judged."""
        names = ("deaths", "fences", "first_step", "last_step", "healing_s", "reaped_t", "ended_t")
        return {name: getattr(self, name) for name in names}


class HangLine(Line):
    """Ranks were found to hang."""

    type = "hang"
    n: int = of(COUNT)
    attempt: int = of(COUNT)
    response: str = of(TEXT)
    scope: str | None = absent(ANY_TEXT)
    ranks: tuple[int, ...] = of(COUNTS)
    blamed: int | None = absent(ANY_COUNT)
    worker: int | None = absent(ANY_COUNT)
    limit_s: float | None = absent(ANY_TIME)
    evidence: tuple[Sign, ...] = of(list_of(record(Sign)))
    where: str | None = absent(ANY_TEXT)
    diagnosis: str | None = absent(ANY_TEXT)


class HangOverLine(Line):
    """What became of a hang that ended nothing."""

    type = "hang-over"
    n: int = of(COUNT)
    attempt: int | None = absent(ANY_COUNT)
    went_on: bool = of(FLAG)
    after_s: float = of(TIME)


class StragglerLine(Line):
    """A rank makes fewer steps than the others."""

    type = "straggler"
    attempt: int | None = absent(ANY_COUNT)
    rank: int = of(COUNT)
    worker: int | None = absent(ANY_COUNT)
    step: int | None = absent(ANY_COUNT)
    others_step: int | None = absent(ANY_COUNT)
    pace: float | None = absent(ANY_TIME)
    lasted_s: float | None = absent(ANY_TIME)


class PaceLine(Line):
    """How long stages took, when an attempt has ended."""

    type = "pace"
    attempt: int | None = absent(ANY_COUNT)
    pauses: Mapping[str, tuple[float, ...]] = of(object_of(TIMES))


class OddValueLine(Line):
    """A loss or a gradient norm was out of the usual; `value` is None where JSON has no such number."""

    type = "odd-value"
    attempt: int = of(COUNT)
    rank: int = of(COUNT)
    worker: int | None = absent(ANY_COUNT)
    step: int = of(COUNT)
    quantity: str = of(TEXT)
    oddness: str | None = absent(ANY_TEXT)
    value: float | None = absent(ANY_NUMBER)
    usual: float | None = absent(ANY_NUMBER)
    deviations: float | None = absent(ANY_NUMBER)
    text: str = of(TEXT)
    acted: bool | None = absent(ANY_FLAG)


class IncidentLine(Line):
    """Something ended an attempt or a recovery, or was reported. `facts`, of its time, stand among its fields.

    `deaths` and what follows them is known only of an attempt.
    """

    type = "incident"
    n: int = of(COUNT)
    ended_t: float = of(TIME)
    deaths: tuple[float, ...] | None = absent(or_null(TIMES), default=None)
    fences: tuple[tuple[float, float], ...] | None = absent(or_null(list_of(SPAN)), default=None)
    first_step: int | None = absent(STEP, default=None)
    last_step: int | None = absent(STEP, default=None)
    healing_s: float | None = absent(or_null(TIME), default=None)
    reaped_t: float | None = absent(or_null(TIME), default=None)
    facts: Incident | Misread = of(_or_misread(INCIDENT))

    @property
    def incident(self) -> Incident:
        """What it was; raises JournalError."""
        return _understood(self.facts)

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        return super().read({**record, "facts": record})

    def stamped(self, t: float, utc: str) -> Self:
        return self.but(t=t, utc=utc, facts=replace(self.incident, t=t))

    def fields_to_json(self) -> dict[str, Any]:
        beside, of_incident = super().fields_to_json(), incident_to_json(self.incident)
        of_attempt = ("deaths", "first_step", "last_step", "healing_s") if self.deaths is None else ()
        unknown = {name for name in (*of_attempt, "fences", "reaped_t") if beside[name] is None}
        return {
            **{name: value for name, value in beside.items() if name not in unknown and name != "facts"},
            **{name: value for name, value in of_incident.items() if name != "t"},
        }


def _without_unused_counters(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out a counter at 0 that earlier versions do not know and would refuse."""
    if fields["counters"]["hand_overs"] == 0:
        del fields["counters"]["hand_overs"]
    return fields


class ProposedLine(Line):
    """A decision that waits for a person; what is to be done may be of a later version."""

    type = "proposed"
    n: int = of(COUNT)
    rule: str | None = absent(ANY_TEXT)
    action: str = of(TEXT)
    isolate: tuple[str, ...] | None = absent(ANY_TEXTS)
    recreate: tuple[int, ...] | None = absent(ANY_COUNTS)
    placement: Mapping[str, str] | None = absent(_unchecked(object_of(TEXT)))
    delay_s: float | None = absent(ANY_TIME)
    resume_step: int | None = absent(ANY_COUNT)
    skip_steps: tuple[Window, ...] | None = absent(_unchecked(WINDOWS))
    counters: Mapping[str, Any] | None = absent(_unchecked(OBJECT))
    reason: str = of(TEXT)
    until: str = of(UTC)
    default: str | None = absent(ANY_TEXT)

    @classmethod
    def about(cls, decision: Decision, *, until: str, default: str) -> Self:
        """Return the line of a decision that waits for an answer `until` its `default` holds."""
        fields = _without_unused_counters(decision_to_json(decision))
        for name in ("isolate", "recreate", "skip_steps"):
            fields[name] = getattr(decision, name)
        del fields["at_fault"]
        return cls(**fields, until=until, default=default)


class AnswerLine(Line):
    """What was said to a proposed decision."""

    type = "answer"
    n: int = of(COUNT)
    answer: str = of(TEXT)
    action: str | None = absent(ANY_TEXT)
    isolate: tuple[str, ...] | None = absent(ANY_TEXTS)
    by: str = of(TEXT)


class DecisionLine(Line):
    """What is done about an incident. `facts` stand among its fields."""

    type = "decision"
    n: int = of(COUNT)
    facts: Decision | Misread = of(_or_misread(DECISION))

    @property
    def decision(self) -> Decision:
        """What was decided; raises JournalError."""
        return _understood(self.facts)

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        return super().read({**record, "facts": record})

    def fields_to_json(self) -> dict[str, Any]:
        return _without_unused_counters(decision_to_json(self.decision))


class RepairedLine(Line):
    """A person has removed damaged lines."""

    type = "repaired"
    lost: tuple[Lost, ...] | None = absent(_unchecked(list_of(record(Lost))))


class EndLine(Line):
    """The last line of a phase that came to its end."""

    type = "end"
    status: str = of(TEXT)
    reason: str = of(TEXT)


class UnknownLine(Line):
    """A line of a type that this version does not know: its type and its other fields, as they are."""

    type: str = of(TEXT)  # type: ignore[misc]  # that of others is their class's
    fields: Mapping[str, Any] = of(OBJECT)

    def fields_to_json(self) -> dict[str, Any]:
        return dict(self.fields)


LINES: Mapping[str, type[Line]] = {
    line.type: line
    for line in (
        *(PhaseLine, EarlierSavesLine, AttemptLine, WarningLine, CameUpLine, CheckpointLine, ReportLine),
        *(WarmLine, ComebackLine, TenureLine, HandOverLine),
        *(HangLine, HangOverLine, StragglerLine, PaceLine, OddValueLine, IncidentLine),
        *(ProposedLine, AnswerLine, DecisionLine, RepairedLine, EndLine),
    )
}


# -- reading ----------------------------------------------------------------------------------------


def names_a_type(record: Mapping[str, Any]) -> bool:
    """Return whether an object is meant as a line of a journal."""
    return isinstance(record.get("type"), str)


def read_line(record: Mapping[str, Any]) -> Line:
    """Return the line in an object; raises FormError for one that is not a line, or lacks what readers rely on."""
    if not names_a_type(record):
        raise FormError("a line without a type")
    kind = record["type"]
    if kind in LINES:
        return LINES[kind].read(record)
    fields = {name: value for name, value in record.items() if name not in ("type", *Line.forms)}
    return UnknownLine(**read_fields(Line.forms, record), type=kind, fields=fields)
