"""The state of a phase at its last incident: the fold of its history that the rules read.

Owns the order in which an incident takes effect. The effects of earlier decisions are taken from their
records: nothing is decided a second time here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from prefect_ft.decide.budgets import Budgets, DeviceFaults, counters
from prefect_ft.decide.effects import Effects
from prefect_ft.decide.incidents import (
    FAILED_RECOVERIES,
    UNCLASSIFIED,
    blamed_systems,
    classified,
    is_incomplete,
    is_report,
    places,
    suspected_systems,
)
from prefect_ft.decide.placement import Gang, Pool
from prefect_ft.decide.resume import Checkpoints
from prefect_ft.decide.skipping import Skipping
from prefect_ft.decide.trials import Trials
from prefect_ft.model import (
    RESTARTS,
    Action,
    Counters,
    Incident,
    Policy,
    Window,
)

READ_MORE = frozenset(("device_fault", "completed"))
"""Kinds, besides exits without a class, that imply more than the incident states."""


@dataclass(slots=True)
class Situation:
    """The state of a phase, and the last incident as the rules see it.

    `incomplete` says that the incident was a completion short of its target, which they see as an
    exit. `progress` is that of the attempt which it ended, `goes_on` says that it ended none.
    `same_device_fault` counts the last device fault that was reported, itself included; `ended_by` is
    the last incident that ended an attempt.
    """

    policy: Policy
    pool: Pool
    checkpoints: Checkpoints
    budgets: Budgets = field(default_factory=Budgets)
    device_faults: DeviceFaults = field(default_factory=DeviceFaults)
    skipping: Skipping = field(default_factory=Skipping)
    trials: Trials = field(default_factory=Trials)
    has_moved: bool = False
    """Whether a worker whose numbers went bad has moved to another system since progress."""
    incident: Incident = field(init=False)
    incomplete: bool = False
    goes_on: bool = False
    progress: bool = False
    same_device_fault: int = 0
    ended_by: Incident | None = None
    _last_action: Action | None = None

    @property
    def blamed(self) -> tuple[str, ...]:
        """The systems that the incident blames."""
        return blamed_systems(self.incident, self.policy, self.pool.gang)

    def arrive(self, incident: Incident, goes_on: bool | None = None) -> None:
        """Apply an incident to everything but the budgets that a decision uses.

        `goes_on` is what was decided about the attempt, `None`: that is not decided yet.
        """
        if incident.t >= self.pool.next_release_t:
            self._release_systems(incident.t)
        self.checkpoints.verify(incident)
        self.incomplete = self.progress = False
        if incident.failure_class in UNCLASSIFIED if incident.kind == "exit" else incident.kind in READ_MORE:
            incident = self._read(incident)
        self.incident = incident
        if goes_on is None:
            goes_on = is_report(incident, self.policy, self.pool.gang)
        self.goes_on = goes_on
        if not goes_on:
            self._end_attempt(incident)

    def _release_systems(self, now: float) -> None:
        released = self.pool.release_expired(now)
        self.budgets.clear_suspicion(released)
        self.device_faults.clear(released)

    def _read(self, incident: Incident) -> Incident:
        """Return the incident as the rules see it, and count a device fault that it reports."""
        if incident.kind == "exit":
            incident = classified(incident)
        elif incident.kind == "device_fault":
            systems = places(incident, self.pool.gang)
            self.same_device_fault = self.device_faults.report(incident, systems)
        if incident.kind == "completed" and is_incomplete(self.policy, self.checkpoints.highest, incident):
            self.incomplete = True
            return replace(incident, kind="exit", failure_class="unknown")
        return incident

    def _end_attempt(self, incident: Incident) -> None:
        """End the attempt, unless none was running, and determine whether it made progress."""
        if incident.kind in FAILED_RECOVERIES and self._nothing_ran(incident):
            self.checkpoints.raise_baseline()
            return
        self.ended_by = incident
        self.checkpoints.started(incident.started_from)
        started_from = self.checkpoints.resumed_from
        seen = incident.seen_step
        if incident.verified is None and self.checkpoints.is_progress:
            seen = incident.step
        self.progress = self.checkpoints.end_attempt()
        self.budgets.end_attempt(incident, self.progress)
        self.skipping.end_attempt(incident, progress=self.progress, started_from=started_from)
        if self.progress:
            self.has_moved = False
        self._weigh(incident, started_from, seen)
        if incident.kind == "handed_over" and incident.systems:
            self._move_to(incident.systems)

    def _weigh(self, incident: Incident, started_from: int | None, seen: int | None) -> None:
        """Determine what the attempt proves; set a poisoned checkpoint aside, unless it was saved again by then."""
        is_bound = self.skipping.is_bound
        self.trials.end_attempt(incident, self.pool.gang, started_from, is_bound=is_bound, seen=seen)
        found = self.trials.finding
        if found is not None and found.checkpoint is not None and (seen or 0) < found.checkpoint:
            self.checkpoints.put_aside(found.checkpoint)

    def _move_to(self, systems: tuple[str, ...]) -> None:
        """Replace the pool by another one."""
        self.policy = replace(self.policy, systems=tuple(dict.fromkeys(systems)))
        self.pool.move_to(self.policy)

    def window(self) -> Window | None:
        """Return the steps that a restart because of the last incident would skip; None: there are none."""
        start = self.checkpoints.next_step(self.incident, "to_start") or 0
        return self.skipping.window(self.incident, self.policy.skip_steps, start)

    def _nothing_ran(self, failed: Incident) -> bool:
        """Return whether a recovery failed before the next attempt began."""
        if failed.kind != "in_place_failed":
            return True
        if failed.attempt is not None:
            ended = self.ended_by.attempt if self.ended_by is not None else None
            return failed.attempt <= (ended or 0)
        # Without the attempt's number: the restart in place failed, unless something was verified after it.
        was_in_place = self._last_action in ("restart_in_place", "replace_workers")
        return was_in_place and not self.checkpoints.is_progress

    def settle(
        self,
        effects: Effects,
        action: Action,
        isolate: tuple[str, ...],
        gang: Gang,
        *,
        resume_step: int | None,
        windows: tuple[Window, ...],
    ) -> None:
        """Apply the decision about the last incident; `effects` are those of its rule."""
        incident, pool, budgets = self.incident, self.pool, self.budgets
        if budgets.count(effects, action, incident):
            suspected = suspected_systems(incident, self.policy, pool.gang)
            if suspected:
                budgets.suspect(suspected)
        if action in RESTARTS:
            if effects.step_back is not None:
                self.checkpoints.step_back(incident, effects.step_back, resume_step)
            self.checkpoints.resumed_from = resume_step
            if effects.step_back == "below_last" and not isolate and gang != pool.gang:
                self.has_moved = True
                pool.avoid([name for name in pool.gang if name not in gang])
            if effects.budget == "skips":
                self.skipping.open(windows)
        if isolate:
            pool.isolate(isolate, incident.t)
            budgets.clear_suspicion(isolate)
        pool.gang = gang
        self._last_action = action

    def counters(self) -> Counters:
        """Freeze the counters as the last decision shows them."""
        return counters(self.budgets, self.device_faults, self.incident.t)
