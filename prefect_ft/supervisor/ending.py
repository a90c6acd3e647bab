"""Turns an attempt's end into one incident, and the facts that the journal keeps beside it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from prefect_ft.backends.base import OUT_OF_MEMORY, USED_UP
from prefect_ft.clock import PhaseClock
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import AttemptLine
from prefect_ft.model import Evidence, Incident
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.incidents import OUT_OF_THE_USUAL, incident_of
from prefect_ft.supervisor.launch import PhasePlan
from prefect_ft.supervisor.saves import Saves


@dataclass(slots=True)
class Ended:
    """How an attempt ended, as far as is known. `attempt` is None where none had begun.

    `t` is when that was noticed and `reaped_t` when all of its processes had ended, `deaths` are when writers died, in
    seconds since the epoch.
    """

    attempt: Attempt | None
    t: float
    is_complete: bool = False
    reaped_t: float = 0.0
    deaths: list[float] = field(default_factory=list)
    fences: tuple[tuple[float, float], ...] = ()
    """Time spans in which checkpoints do not count."""


class Ending:
    """Determines what ended the attempts of one phase."""

    def __init__(
        self,
        plan: PhasePlan,
        saves: Saves,
        journal: MemoryJournal,
        clock: PhaseClock,
        evidence: Callable[[int], Evidence | None],
    ) -> None:
        """`evidence` is what the infrastructure knows of how a process in a worker ended; None where it is gone."""
        self._plan, self._saves, self._journal, self._clock = plan, saves, journal, clock
        self._evidence = evidence

    def incident(self, ended: Ended, number: int, cancelled_by: str | None) -> Incident:
        """Return the incident; a run that is to stop is cancelled, whatever else happens at the same time."""
        attempt = ended.attempt
        if attempt is not None:
            incident = incident_of(attempt, ended.t, cancelled_by=cancelled_by)
        else:
            assert cancelled_by is not None
            evidence = Evidence(rule="stop-request", text=cancelled_by)
            incident = Incident(t=ended.t, kind="cancelled", attempt=number, evidence=evidence)
        self._distrust(incident, ended)
        incident = replace(self._explained(incident, attempt), **self.known_saves())
        return incident if attempt is None else replace(incident, started_from=self._started_from(attempt))

    def _distrust(self, incident: Incident, ended: Ended) -> None:
        """Ignore checkpoints saved since values became unusual, which is noticed late."""
        evidence = incident.evidence
        is_late = evidence is not None and evidence.rule == OUT_OF_THE_USUAL
        if is_late and incident.reached is not None:
            span = self._saves.distrust(incident.reached, round(self._clock.epoch(), 3))
            ended.fences = () if span is None else (span,)

    def _explained(self, incident: Incident, attempt: Attempt | None) -> Incident:
        """Return a rank's death by SIGKILL with the cause that its agent or its infrastructure knows."""
        is_bare = incident.signal == signal.SIGKILL and incident.failure_class in ("unknown", "crash")
        if not is_bare or incident.worker is None:
            return incident
        has_run_out = attempt is not None and attempt.has_run_out(incident.worker)
        evidence = USED_UP if has_run_out else self._evidence(incident.worker)
        if evidence is None or evidence.rule != OUT_OF_MEMORY:
            return incident
        return replace(incident, failure_class="oom_host", evidence=evidence)

    def began_t(self, attempt: Attempt) -> float:
        """Return when all ranks of an attempt had been started, in seconds since the phase began."""
        lines = self._journal.lines
        return max(
            line.t for line in lines if isinstance(line, AttemptLine) and line.attempt == attempt.number
        )

    def _started_from(self, attempt: Attempt) -> int | None:
        """Return the step from which an attempt started, 0 from scratch; None: unknown, or without checkpoints."""
        recorded = (
            line
            for line in reversed(self._journal.lines)
            if isinstance(line, AttemptLine) and line.attempt == attempt.number
        )
        line = next(recorded, None)  # a stop may come before all its ranks have started
        return None if line is None or not self._plan.has_checkpoints else line.resume_step or 0

    def known_saves(self) -> dict[str, Any]:
        """Return an incident's fields about checkpoints."""
        return self._saves.facts() if self._plan.has_checkpoints else {}

    def facts(self, ended: Ended, found_deaths: list[float]) -> dict[str, Any]:
        """Return the facts about an attempt that the journal keeps beside its incident."""
        attempt = ended.attempt
        if attempt is None:
            return {"reaped_t": ended.reaped_t}
        ended_t = attempt.hung_since_t
        if ended_t is None and (ended_ns := attempt.ended_ns()) is not None:
            ended_t = self._clock.at(ended_ns)
        # The time of death of a lost agent's ranks is unknown; by now they have stopped writing.
        unseen = [self._clock.epoch()] if attempt.lost else []
        return {
            "deaths": tuple(sorted({*ended.deaths, *found_deaths, *unseen})),
            **self._fences(ended, attempt),
            "ended_t": ended_t,
            "first_step": attempt.first_step,
            "last_step": attempt.last_step,
            "healing_s": attempt.healing_s,
            "reaped_t": ended.reaped_t,
        }

    def _fences(self, ended: Ended, attempt: Attempt) -> dict[str, Any]:
        """Ignore what lost ranks write from now on; return all such time spans for the journal."""
        fences = ended.fences
        lasts_s = self._plan.lost_ranks_last_s
        if lasts_s is not None and not all(loss.system_answers for loss in attempt.lost.values()):
            now_s = self._clock.epoch()
            fences = (*fences, (round(now_s, 3), round(now_s + lasts_s, 3)))
            self._saves.fence(*fences[-1])
        return {"fences": fences} if fences else {}
