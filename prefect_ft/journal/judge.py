"""The only way a decision is made: record the incident, decide, record the decision, and only then act."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from prefect_ft.clock import PhaseClock
from prefect_ft.decide import decide
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.model import Decision, Entry, History, Incident, Policy

Gate = Callable[[MemoryJournal, Policy, History, Decision], Decision]
"""Approves a decision before it is recorded: returns it, or what a person wants instead. May take hours."""


def judge(
    journal: MemoryJournal,
    policy: Policy,
    incident: Incident,
    clock: PhaseClock,
    *,
    ended_t: float | None = None,
    gate: Gate | None = None,
    **facts: Any,
) -> Decision:
    """Decide about one incident; when this returns, the decision is on disk.

    `ended_t` is when it happened, if that is known more precisely than `incident.t`, when it was noticed.
    `facts` are kept in the journal for the report, and do not affect the decision.
    Raises JournalError; then nothing may be done about the incident.
    """
    with journal.lock:
        history = journal.history()
        incident = replace(incident, t=round(max(incident.t, journal.last_t), 6))
        happened_t = incident.t if ended_t is None else min(ended_t, incident.t)
        number = journal.last_number + 1
        journal.append_incident(incident, n=number, ended_t=happened_t, **facts)
        return _decide(journal, policy, (*history, Entry(incident=incident)), clock, gate)


def judge_pending(
    journal: MemoryJournal, policy: Policy, clock: PhaseClock, gate: Gate | None = None
) -> Decision | None:
    """Return the last decision; decide now about an incident that an earlier orchestrator left undecided.

    None if nothing has happened yet.
    """
    history = journal.history()
    if not history or history[-1].decision is not None:
        return history[-1].decision if history else None
    return _decide(journal, policy, history, clock, gate)


def _decide(
    journal: MemoryJournal, policy: Policy, history: History, clock: PhaseClock, gate: Gate | None
) -> Decision:
    decision = replace(decide(policy, history), n=journal.last_number)
    if gate is not None:
        decision = gate(journal, policy, history, decision)
    journal.append_decision(decision, t=clock.now())
    return decision
