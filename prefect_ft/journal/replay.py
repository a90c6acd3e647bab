"""Replays incidents, of a file or of a phase's journal, and returns what a policy decides about each.

Owns the rules of the file as a whole. Starts nothing and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from prefect_ft.decide import InTurn, decide, initial_placement
from prefect_ft.decide.classify import Catalogue
from prefect_ft.decide.incidents import classified
from prefect_ft.errors import ConfigError, JournalError
from prefect_ft.files import parse_json
from prefect_ft.journal.forms import decision_to_json, incident_from_json
from prefect_ft.journal.lines import check_format, describe_damage, head_of, history_of, is_journal, scan
from prefect_ft.journal.records import IncidentLine
from prefect_ft.model import CONTINUES, Decision, Entry, History, Incident, Policy

# -- reading ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The incidents of a file, with the decisions where it is a phase's journal.

    `numbers` are their line numbers, from 1. Only for a journal: `phase` is the one that it
    names, `isolated` are the systems that were out of use when that began.
    """

    file: str
    history: History
    numbers: tuple[int, ...]
    is_journal: bool = False
    phase: str | None = None
    isolated: tuple[str, ...] = ()
    damage: str | None = None
    """The description of a journal's damage."""


def read_recording(path: str | Path) -> Recording:
    """Read a journal or a file of incidents; raises ConfigError with file, line and field."""
    try:
        data = Path(path).read_bytes()
        if is_journal(data):
            return _recorded(str(path), data)
        text = data.decode()
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}", file=str(path)) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError("is not UTF-8 text", file=str(path)) from exc
    incidents = _incidents(str(path), text)
    return Recording(
        file=str(path),
        history=tuple(Entry(incident=incident) for incident in incidents),
        numbers=tuple(range(1, len(incidents) + 1)),
    )


def _recorded(path: str, data: bytes) -> Recording:
    """Read from a journal everything that its supervisor knew."""
    check_format(data, path)
    numbered, damaged = scan(data)
    lines = [line for _, line in numbered]
    head = head_of(lines)
    try:
        history = history_of(lines)
    except JournalError as exc:
        raise ConfigError(str(exc), file=path) from exc
    return Recording(
        file=path,
        history=history,
        numbers=tuple(number for number, line in numbered if isinstance(line, IncidentLine)),
        is_journal=True,
        phase=head.phase if head is not None else None,
        isolated=(head.isolated or ()) if head is not None else (),
        damage=describe_damage(Path(path), damaged) if damaged else None,
    )


def _incidents(path: str, text: str) -> list[Incident]:
    incidents: list[Incident] = []
    for number, line in enumerate(text.rstrip().split("\n") if text.strip() else (), start=1):
        try:
            incident = incident_from_json(_parse(line))
            if incidents and incident.t < incidents[-1].t:
                raise ConfigError(f"{incident.t:g} is before the line above; t must not fall", field="t")
        except ConfigError as exc:
            raise ConfigError(exc.message, file=path, line=number, field=exc.field) from exc
        incidents.append(incident)
    return incidents


def _parse(line: str) -> dict[str, Any]:
    try:
        value = parse_json(line, parse_constant=_no_constant)
    except ValueError as exc:
        raise ConfigError(f"is not JSON ({exc}); write one object a line") from exc
    if not isinstance(value, dict):
        raise ConfigError("is not a JSON object; write one object a line")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


# -- deciding anew ----------------------------------------------------------------------------------


def replay(policy: Policy, recording: Recording, catalogue: Catalogue | None = None) -> Iterator[Decision]:
    """Decide about each incident in turn, as if each decision had been carried out.

    Raises ConfigError, with the incident's line, where one names an unknown place, or comes after the end
    in a file of incidents; so take all decisions before showing one. Incidents of a journal after
    a decision that would have ended the phase are left out: they would not have happened.
    """
    deciding, last = InTurn(policy), None
    for entry, number in zip(recording.history, recording.numbers, strict=True):
        has_ended = last is not None and last.action not in CONTINUES
        if has_ended and recording.is_journal:
            return
        try:
            _check_end(last if has_ended else None)
            _check_place(deciding.systems, last, entry.incident, policy)
        except ConfigError as exc:
            raise ConfigError(exc.message, file=recording.file, line=number, field=exc.field) from exc
        last = deciding.decide(classified(entry.incident, catalogue))
        yield last


def _check_end(end: Decision | None) -> None:
    if end is not None:
        raise ConfigError(
            f"nothing may follow, since incident {end.n} ended the phase ({end.action})", field="kind"
        )


def _check_place(systems: tuple[str, ...], last: Decision | None, incident: Incident, policy: Policy) -> None:
    """Check that a machine's report names a known machine; `systems` is the pool at that time."""
    if incident.kind not in ("device_fault", "system_lost"):
        return
    for name in (incident.system, *incident.systems):
        if name is not None and name not in systems:
            field = "system" if name == incident.system else "systems"
            raise ConfigError(f"unknown system {name!r}; known are {', '.join(systems)}", field=field)
    if incident.system is not None or incident.systems:
        return
    if incident.worker is None:
        raise ConfigError(f"a {incident.kind} has to name system, systems or worker", field="system")
    gang = last.placement if last is not None else initial_placement(policy) or ()
    if incident.worker >= len(gang):
        raise ConfigError(f"unknown worker {incident.worker}; the gang has {len(gang)}", field="worker")


# -- comparing --------------------------------------------------------------------------------------

COMPARED = (
    "rule",
    "action",
    "isolate",
    "recreate",
    "placement",
    "resume_step",
    "skip_steps",
    "delay_s",
    "counters",
)
"""The fields in which decisions can differ; the reason only describes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The recorded decision about an incident, and a policy's; `differs` names the fields."""

    recorded: Decision
    now: Decision
    differs: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object, with both decisions in full."""
        return {
            "n": self.recorded.n,
            "recorded": decision_to_json(self.recorded),
            "now": decision_to_json(self.now),
            "differs": list(self.differs),
        }


def compare(policy: Policy, recorded: History, catalogue: Catalogue | None = None) -> Iterator[Comparison]:
    """Decide again about each incident of a journal that has a decision.

    Each with the real history before it: what would this policy have decided at that point? What would have
    followed from another decision is not recorded.
    """
    history = tuple(replace(entry, incident=classified(entry.incident, catalogue)) for entry in recorded)
    for index, entry in enumerate(history):
        if entry.decision is None:
            continue
        now = decide(policy, (*history[:index], Entry(incident=entry.incident)))
        differs = tuple(name for name in COMPARED if getattr(entry.decision, name) != getattr(now, name))
        yield Comparison(recorded=entry.decision, now=now, differs=differs)
