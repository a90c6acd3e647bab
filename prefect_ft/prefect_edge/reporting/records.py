"""Log lines and events for Prefect, one set for each decision and each phase's end, from the journal alone.

Pure. A record is reported once. It is named by its number in its phase, or as the end, and its events' ids follow
from that, so reporting it again has the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

from prefect_ft.clock import utc_now
from prefect_ft.journal.lines import end_of, head_of, history_of
from prefect_ft.journal.records import DecisionLine, IncidentLine, Line
from prefect_ft.model import RESTARTS, Action, Counters, Decision, Incident
from prefect_ft.observe import Proposed
from prefect_ft.plaintext import as_line

STATE_NAMES: Mapping[Action, str] = {
    "restart_in_place": "Restarting in place",
    "replace_workers": "Replacing workers",
    "rebuild": "Rebuilding",
    "isolate_and_rebuild": "Isolating",
}
"""The name of the flow run's state while such a decision is carried out."""

_EVENT_IDS = UUID("5f0d6a0e-8a52-4b69-9a6b-6a5a2f1f0c11")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The phase of a record: its run, its directory's name and its own."""

    run: str
    directory: str
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """A decision, with the time of its line."""

    place: Place
    utc: str
    incident: Incident
    decision: Decision

    @property
    def number(self) -> int:
        return self.decision.n


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord:
    """The end of a phase; `number` is above those of its decisions."""

    place: Place
    utc: str
    number: int
    status: str
    reason: str
    final_step: int | None


Record = DecisionRecord | EndRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class EventNote:
    """An event for Prefect, without what only Prefect knows; `systems` are its related resources."""

    id: UUID
    name: str
    utc: str
    place: Place
    systems: tuple[str, ...]
    payload: Mapping[str, Any]


def records_of(run: str, directory: str, lines: Sequence[Line], after: int) -> list[Record]:
    """Return what a phase's journal records beyond number `after`, in its order. Raises JournalError."""
    head = head_of(lines)
    place = Place(run=run, directory=directory, phase=head.phase if head is not None else "")
    utc = {line.n: line.utc for line in lines if isinstance(line, DecisionLine)}
    entries = [entry for entry in history_of(lines) if entry.decision is not None]
    records: list[Record] = []
    for entry in entries:
        assert entry.decision is not None
        if (number := entry.decision.n) > after:
            records.append(
                DecisionRecord(place=place, utc=utc[number], incident=entry.incident, decision=entry.decision)
            )
    end = end_of(lines)
    number = len(entries) + 1
    if end is not None and number > after:
        steps = [line.last_step for line in lines if isinstance(line, IncidentLine) and line.last_step]
        records.append(
            EndRecord(
                place=place,
                utc=end.utc,
                number=number,
                status=end.status,
                reason=end.reason,
                final_step=steps[-1] if steps else None,
            )
        )
    return records


def state_name(decision: Decision) -> str | None:
    """Return the name of the flow run's state while a decision is carried out; None: it does not change."""
    name = STATE_NAMES.get(decision.action)
    if decision.isolate and name is not None:
        return as_line(f"Isolating {', '.join(decision.isolate)}")
    return name


# -- the log ----------------------------------------------------------------------------------------


def level_of(record: DecisionRecord) -> int:
    """Return the log level of a record's line: a completion is not a warning."""
    return logging.INFO if record.decision.completes else logging.WARNING


def line_of(record: DecisionRecord) -> str:
    """Return the one line of log about a decision; terminals show it as it is."""
    incident, decision = record.incident, record.decision
    cause = incident.evidence
    evidence = (
        f" cause={cause.rule} blame={incident.blame} evidence={cause.text!r}" if cause is not None else ""
    )
    return as_line(
        f"phase={record.place.phase} attempt={incident.attempt or 0} outcome={incident.kind} "
        f"class={incident.failure_class} rule={decision.rule} action={decision.action} "
        f"delay_s={decision.delay_s:g}{evidence}{_counted(decision.counters)}: {decision.reason}"
    )


def _counted(counters: Counters) -> str:
    """Return the counters that are not zero."""
    names = ("failures_without_progress", "consecutive_suspensions", "consecutive_unconditional")
    more = ("worker_replacements", "preemptions", "same_failure")
    used = [(name, getattr(counters, name)) for name in (*names, *more)]
    return "".join(f" {name}={value}" for name, value in used if value)


# -- events -----------------------------------------------------------------------------------------


def events_of(record: Record) -> Iterator[EventNote]:
    """Return the events of a record."""
    if isinstance(record, EndRecord):
        name = {"completed": "phase-completed", "failed": "gave-up"}.get(record.status)
        if name is not None:
            yield _event(record, name, (), _of_end(record))
        return
    incident, decision = record.incident, record.decision
    systems = tuple(dict.fromkeys((*decision.isolate, *incident.systems, *_one(incident.system))))
    payload: dict[str, Any] = {
        "phase": record.place.phase,
        "attempt": incident.attempt,
        "outcome": incident.kind,
        "class": incident.failure_class,
        "evidence": incident.evidence.text if incident.evidence is not None else None,
        "rule": decision.rule,
        "action": decision.action,
        "isolated": list(decision.isolate),
        "resume_step": decision.resume_step,
        "delay_s": decision.delay_s,
        "reason": decision.reason,
    }
    if incident.kind == "suspended":
        yield _event(record, "suspension", systems, payload)
    if decision.isolate:
        yield _event(record, "isolation", systems, payload)
    if decision.action in RESTARTS:
        yield _event(record, "restart", systems, payload)


def _of_end(record: EndRecord) -> dict[str, Any]:
    return {"phase": record.place.phase, "reason": record.reason, "final_step": record.final_step}


def approval_wanted(run: str, proposed: Proposed) -> EventNote:
    """Return the event of a decision that waits for a person."""
    place = Place(run=run, directory="", phase=proposed.phase)
    decision = proposed.decision
    payload = {
        "phase": proposed.phase,
        "attempt": proposed.attempt,
        "rule": decision.rule,
        "action": decision.action,
        "isolated": list(decision.isolate),
        "reason": decision.reason,
        "until": proposed.until,
    }
    return EventNote(
        id=uuid5(_EVENT_IDS, f"{run}/{proposed.phase}/{proposed.until}/approval-wanted"),
        name="prefect-ft.approval-wanted",
        utc=utc_now(),
        place=place,
        systems=decision.isolate,
        payload=payload,
    )


def _one(name: str | None) -> tuple[str, ...]:
    return (name,) if name is not None else ()


def _event(record: Record, name: str, systems: tuple[str, ...], payload: Mapping[str, Any]) -> EventNote:
    place = record.place
    return EventNote(
        id=uuid5(_EVENT_IDS, f"{place.run}/{place.directory}/{record.number}/{name}"),
        name=f"prefect-ft.{name}",
        utc=record.utc,
        place=place,
        systems=systems,
        payload=payload,
    )
