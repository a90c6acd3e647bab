"""Checkpoints of a phase: what is progress, which are set aside, from which one the next attempt resumes.

Owns verified steps as far as the history has them. Reads no file: a checkpoint was verified before its
step got into an incident.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from prefect_ft.decide.effects import StepBack
from prefect_ft.model import Incident, Mode


class Hold(NamedTuple):
    """The step to which a step back holds the phase until it makes progress; `None`: from scratch."""

    step: int | None


@dataclass(slots=True)
class Checkpoints:
    """The verified steps of one phase while its history is folded; in `eval` there are none."""

    mode: Mode
    set_aside: frozenset[int] = frozenset()
    _baseline: int = 0
    _seen: int = 0
    resumed_from: int | None = None
    _good: set[int] = field(default_factory=set)
    _hold: Hold | None = None

    @property
    def highest(self) -> int:
        """The highest step that was ever verified, 0 if none; setting one aside does not lower it."""
        return self._seen if self._seen > self._baseline else self._baseline

    @property
    def is_progress(self) -> bool:
        """Whether a step seen since the last attempt ended is above all verified before."""
        return self._seen > self._baseline

    def verify(self, incident: Incident) -> None:
        """Note the step that an incident reports as verified; if it had been set aside, it is good again."""
        if self.mode == "eval":
            return
        if incident.verified is not None:
            self._good = set(incident.verified)
        step, seen, baseline = incident.step, incident.seen_step, incident.baseline_step
        if step is not None:
            self._good.add(step)
            if step > self._seen:  # noqa: PLR1730  # calling max() costs as much as all the rest
                self._seen = step
        if seen is not None and seen > self._seen:
            self._seen = seen
        if baseline is not None and baseline > self._baseline:
            self._baseline = baseline
        if self.set_aside:
            self.set_aside -= self._good

    def started(self, step: int | None) -> None:
        """Note where the ended attempt really started: below the decided step, if that was gone.

        `None`: at the decided step; 0: from scratch.
        """
        if step is None or self.mode == "eval":
            return
        self.resumed_from = step or None
        if self._hold is not None and step < (self._hold.step or 0):
            self._hold = Hold(step or None)

    def end_attempt(self) -> bool:
        """End an attempt; return whether it made progress, which lifts a hold."""
        seen, self._seen = self._seen, 0
        if seen <= self._baseline:
            return False
        self._baseline, self._hold = seen, None
        return True

    def raise_baseline(self) -> None:
        """Count what was verified between two attempts as known before the next: it is no attempt's progress."""
        self._baseline, self._seen = self.highest, 0

    def next_step(self, incident: Incident, step_back: StepBack | None) -> int | None:
        """Choose the step from which a restart resumes; `None` is from scratch."""
        last = self._hold.step if self._hold else self._last(incident)
        if step_back == "to_start" and incident.failure_class == "numeric":
            last = self.resumed_from
        if last is None:
            return None
        if step_back == "last":
            return last if self._hold is None and last in self._good else self._next_below(last)
        if step_back == "second_try":
            return self._at_least_the_start(self._next_below(last))
        if step_back == "below_last":
            return self._next_below(last)
        if step_back == "set_aside":
            bad = self.unreadable(incident)
            return None if bad is None else self._next_below(min(bad, last + 1))
        return last if last in self._good else self._next_below(last)

    def unreadable(self, incident: Incident) -> int | None:
        """Return which checkpoint could not be loaded: at `load` the one resumed from, else the last."""
        if self.mode == "eval":
            return None
        if incident.stage == "load" and self.resumed_from is not None:
            return self.resumed_from
        return self._last(incident)

    def step_back(self, incident: Incident, how: StepBack, resume_step: int | None) -> None:
        """Note a restart that stepped back: what it sets aside, or where it holds the phase."""
        if how == "below_last" or (how == "to_start" and incident.failure_class == "numeric"):
            self._hold = Hold(resume_step)
        if how != "set_aside":
            return
        bad = self.unreadable(incident)
        if bad is not None:
            self.put_aside(bad)

    def put_aside(self, step: int) -> None:
        """Set a checkpoint aside, until it is verified again."""
        self._good.discard(step)
        self.set_aside |= {step}

    def _at_least_the_start(self, step: int | None) -> int | None:
        """Return a step, or the one that the failed attempt started from, whichever is later and good."""
        start = self.resumed_from
        return start if start is not None and start in self._good and start > (step or 0) else step

    def _last(self, incident: Incident) -> int | None:
        return max(self._good, default=None) if incident.step is None else incident.step

    def _next_below(self, step: int) -> int | None:
        return max((good for good in self._good if good < step), default=None)
