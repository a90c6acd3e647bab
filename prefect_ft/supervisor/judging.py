"""Judges obstacles to carrying out a decision: a worker that is gone, systems that failed their check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prefect_ft.clock import PhaseClock
from prefect_ft.journal.judge import Gate, judge
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.model import Decision, Evidence, Incident
from prefect_ft.observe import Decided, Notice, tell
from prefect_ft.supervisor.enact import failure_kind
from prefect_ft.supervisor.launch import PhasePlan
from prefect_ft.supervisor.roster import WorkerGoneError


@dataclass(frozen=True, slots=True)
class Unfit:
    """Systems that failed their check, with the reason for each."""

    systems: Mapping[str, str]


Obstacle = WorkerGoneError | Unfit


class Judging:
    """Records incidents of one phase and decides about them. `gate` approves decisions."""

    def __init__(
        self,
        plan: PhasePlan,
        journal: MemoryJournal,
        clock: PhaseClock,
        known_saves: Callable[[], dict[str, Any]],
        gate: Gate | None,
    ) -> None:
        """`known_saves` returns an incident's fields about checkpoints."""
        self._plan, self._journal, self._clock = plan, journal, clock
        self._known_saves, self._gate = known_saves, gate

    def judge(self, incident: Incident, attempt: int, **facts: Any) -> Decision:
        """Decide about an incident; when this returns, the decision is on disk."""
        decision = judge(self._journal, self._plan.policy, incident, self._clock, gate=self._gate, **facts)
        if decision.at_fault is not None:
            tell(Notice(text=f"{self._plan.phase}: at fault: {decision.at_fault.text}"))
        tell(Decided(phase=self._plan.phase, attempt=attempt, incident=incident, decision=decision))
        return decision

    def incident_of(
        self, obstacle: Obstacle, decision: Decision | None, last_started: int | None
    ) -> Incident:
        """Report and return the incident for what prevents `decision` (None: the phase's beginning)."""
        if isinstance(obstacle, Unfit):
            return self._unfit(obstacle, last_started)
        return self._gone(obstacle, decision, last_started)

    def _gone(self, gone: WorkerGoneError, decision: Decision | None, last_started: int | None) -> Incident:
        created = decision is None or gone.worker in decision.recreate
        tell(Notice(text=f"worker {gone.worker} is not there: {gone.why}"))
        return Incident(
            t=self._clock.now(),
            kind=failure_kind(decision.action if decision else None, was_created=created),
            attempt=last_started,
            worker=gone.worker,
            system=gone.system,
            blame="none" if gone.on_any_system else None,
            evidence=Evidence(rule="worker-gone", text=gone.why),
            **self._known_saves(),
        )

    def _unfit(self, unfit: Unfit, last_started: int | None) -> Incident:
        for system, why in unfit.systems.items():
            tell(Notice(text=f"{system} did not pass its check: {why}"))
        text = "; ".join(f"{system}: check failed: {why}" for system, why in unfit.systems.items())
        return Incident(
            t=self._clock.now(),
            kind="system_lost",
            attempt=last_started,
            systems=tuple(unfit.systems),
            evidence=Evidence(rule="check-failed", text=text),
            **self._known_saves(),
        )
