"""The counters of docs/recovery-policy.md as folds over a phase's history.

Owns what each counter counts and what resets it. Knows no rule: a rule's effects say which counters a decision
uses, and rules and after-checks compare them with limits. Nothing here is stored; the history is folded again
for each decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from typing_extensions import assert_never

from prefect_ft.decide.effects import Budget, Effects
from prefect_ft.model import RESTARTS, Action, Counters, FailureClass, Incident, Policy

DEVICE_FAULT_WINDOW_S = 86400


def limits_of(policy: Policy) -> dict[str, int | None]:
    """Return a policy's limits by the names of the counters that they bound; None: there is none."""
    return {
        "failures_without_progress": policy.max_num_restarts,
        "consecutive_suspensions": policy.max_suspension_restarts,
        "worker_replacements": policy.max_worker_replacements,
        "preemptions": policy.max_preemptions,
        "hand_overs": policy.max_hand_overs,
    }


@dataclass(slots=True)
class Budgets:
    """All counters except that of device faults, and what must be known since the last progress."""

    failures_without_progress: int = 0
    consecutive_suspensions: int = 0
    consecutive_unconditional: int = 0
    worker_replacements: int = 0
    preemptions: int = 0
    hand_overs: int = 0
    same_failure: int = 0
    suspects: dict[str, int] = field(default_factory=dict)
    transient_since_progress: bool = False
    confirmed_since_progress: dict[FailureClass, tuple[int | None, ...]] = field(default_factory=dict)
    """For each class that had its confirming restart, the steps that these failures had reached."""
    _last_failure: Incident | None = None

    def end_attempt(self, incident: Incident, progress: bool) -> None:
        """Reset what an attempt's end and progress reset, before this incident is counted."""
        if progress:
            self.failures_without_progress = self.consecutive_suspensions = 0
            self.consecutive_unconditional = self.same_failure = self.hand_overs = 0
            self.transient_since_progress = False
            self.confirmed_since_progress = {}
        if incident.kind != "suspended":
            self.consecutive_suspensions = 0
        if incident.kind == "handed_over":
            self.hand_overs += 1
        if incident.signature is None or incident.step is None or incident.kind != "exit":
            self.same_failure = 0
            return
        if self._last_failure is None or not _is_identical(self._last_failure, incident):
            self.same_failure = 0
        self._last_failure = incident
        self.same_failure += 1

    def suspect(self, systems: Iterable[str]) -> None:
        """Count a failure that makes systems suspect."""
        for system in systems:
            self.suspects[system] = self.suspects.get(system, 0) + 1

    def count(self, effects: Effects, action: Action, incident: Incident) -> bool:
        """Count a decision in each budget that it uses; return whether it is a counted failure."""
        if action in RESTARTS:
            if effects.budget is not None:
                self._draw_on(effects.budget, incident)
            if action == "replace_workers":
                self.worker_replacements += 1
        if action not in effects.counted:
            return False
        self.failures_without_progress += 1
        return True

    def _draw_on(self, budget: Budget, incident: Incident) -> None:
        match budget:
            case "transient_since_progress":
                self.transient_since_progress = True
            case "consecutive_suspensions":
                self.consecutive_suspensions += 1
            case "consecutive_unconditional":
                self.consecutive_unconditional += 1
            case "preemptions":
                self.preemptions += 1
            case "confirmed_since_progress":
                if (name := incident.failure_class) is not None:
                    earlier = self.confirmed_since_progress.get(name, ())
                    self.confirmed_since_progress[name] = (*earlier, incident.reached)
            case "skips":
                pass  # counted with the windows
            case _:
                assert_never(budget)

    def clear_suspicion(self, systems: Iterable[str]) -> None:
        """Clear the suspicion of systems that are isolated, or usable again."""
        for system in systems:
            self.suspects.pop(system, None)


def _is_identical(earlier: Incident, now: Incident) -> bool:
    """Return whether two failures have the same signature at the same place, as far as both are known."""
    if (earlier.signature, earlier.step) != (now.signature, now.step):
        return False
    return earlier.reached is None or now.reached is None or earlier.reached == now.reached


@dataclass(slots=True)
class DeviceFaults:
    """Reports of the same code on the same device: too many within a day are not chance."""

    _reports: dict[tuple[str, str], tuple[str, tuple[float, ...]]] = field(default_factory=dict)

    def report(self, incident: Incident, systems: Iterable[str]) -> int:
        """Count a fault that is more than a warning; return its count."""
        if incident.device is None or incident.code is None or incident.severity == "warning":
            return 0
        most = 0
        for system in systems:
            place = (system, incident.device)
            earlier: tuple[float, ...] = ()
            if place in self._reports:
                code, times = self._reports[place]
                earlier = _recent(times, incident.t) if code == incident.code else ()
            self._reports[place] = (incident.code, (*earlier, incident.t))
            most = max(most, len(earlier) + 1)
        return most

    def clear(self, systems: Iterable[str]) -> None:
        """Forget the reports of systems that are usable again."""
        if self._reports:
            for key in [key for key in self._reports if key[0] in systems]:
                del self._reports[key]

    def counts(self, now: float) -> dict[str, int]:
        """Return the counts at `now`, in seconds since the phase began, by `system/device/code`."""
        if not self._reports:
            return {}
        counts = {}
        for (system, device), (code, times) in self._reports.items():
            recent = _recent(times, now)
            if recent:
                counts[f"{system}/{device}/{code}"] = len(recent)
        return counts


def _recent(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    """Return the times that lie within the window before `now`."""
    if now - min(times) <= DEVICE_FAULT_WINDOW_S:
        return times
    return tuple([t for t in times if now - t <= DEVICE_FAULT_WINDOW_S])


def counters(budgets: Budgets, faults: DeviceFaults, now: float) -> Counters:
    """Freeze the counters as a decision shows them."""
    return Counters(
        failures_without_progress=budgets.failures_without_progress,
        consecutive_suspensions=budgets.consecutive_suspensions,
        consecutive_unconditional=budgets.consecutive_unconditional,
        worker_replacements=budgets.worker_replacements,
        preemptions=budgets.preemptions,
        hand_overs=budgets.hand_overs,
        same_failure=budgets.same_failure,
        same_device_fault=faults.counts(now),
        suspects=dict(budgets.suspects),
    )
