"""The best interval between this run's checkpoints, from its own failures and the cost of its checkpoints.

With a mean time M between failures and a cost C of one checkpoint, an interval T of work between two checkpoints
loses about C/T to saving and T/2M to work done again. The best T is, to the first order, √(2CM) (J. W. Young, "A
first order approximation to the optimum checkpoint interval", Communications of the ACM 17(9), 1974); the one given
here is the higher order estimate of J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
restart dumps", Future Generation Computer Systems 22(3), 2006.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from prefect_ft.journal.attempts import Timeline
from prefect_ft.journal.records import CheckpointLine, Line, PaceLine
from prefect_ft.model import AFTER_FAILURES

LONGEST = 0.5
"""The formula does not apply to checkpoint costs above this many mean times between failures."""

FORMULA = "T = √(2CM)·(1 + ⅓·√(C/2M) + ⅑·C/2M) - C, and T = M where C ≥ 2M"
SOURCE = (
    "J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), "
    "2006; after J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Statistics of failures and checkpoints, in seconds; `None`: unknown from these journals.

    `interval_s` is the median time between two checkpoints, `cost_s` the median cost of one, `cost_from` how many were
    measured; `best_s` the interval by Daly's formula.
    """

    failures: int
    worked_s: float
    interval_s: float | None
    cost_s: float | None
    cost_from: int

    @property
    def between_failures_s(self) -> float | None:
        """The mean time of work between two failures."""
        return self.worked_s / self.failures if self.failures else None

    @property
    def best_s(self) -> float | None:
        if self.cost_s is None or self.between_failures_s is None:
            return None
        return best_interval_s(self.cost_s, self.between_failures_s)

    @property
    def fitting_cost_s(self) -> float | None:
        """The cost of a checkpoint for which the present interval would be best; `None` also if no cost is."""
        mean_s = self.between_failures_s
        if (
            self.interval_s is None
            or not mean_s
            or self.interval_s >= best_interval_s(LONGEST * mean_s, mean_s)
        ):
            return None
        low_s, high_s = 0.0, LONGEST * mean_s
        for _ in range(60):  # the formula has no closed inverse, and grows with the cost
            cost_s = (low_s + high_s) / 2
            if best_interval_s(cost_s, mean_s) < self.interval_s:
                low_s = cost_s
            else:
                high_s = cost_s
        return low_s

    def loss(self, interval_s: float) -> float | None:
        """Return the share of time lost to saving and repeated work at an interval, to the first order."""
        if self.cost_s is None or not self.between_failures_s or interval_s <= 0:
            return None
        return self.cost_s / interval_s + interval_s / (2 * self.between_failures_s)


def best_interval_s(cost_s: float, between_failures_s: float) -> float:
    """Return the best time of work between two checkpoints, by Daly's higher order estimate."""
    if cost_s >= 2 * between_failures_s:
        return between_failures_s
    part = cost_s / (2 * between_failures_s)
    first_order = math.sqrt(2 * cost_s * between_failures_s)
    return first_order * (1 + math.sqrt(part) / 3 + part / 9) - cost_s


def advise(phases: Iterable[tuple[Sequence[Line], Timeline]]) -> Advice:
    """Return statistics for the checkpoint interval from the journals of a run's phases."""
    failures, worked_s = 0, 0.0
    gaps: list[float] = []
    costs: list[float] = []
    for lines, timeline in phases:
        failures += sum(_is_failure(each.decision.action, each.incident.kind) for each in timeline.judged)
        worked_s += sum(
            span.end - span.start for span in timeline.spans if span.part in ("productive", "recompute")
        )
        gaps += _gaps(lines, timeline)
        costs += _costs(lines)
    return Advice(
        failures=failures,
        worked_s=worked_s,
        interval_s=median(gaps) if gaps else None,
        cost_s=median(costs) if costs else None,
        cost_from=len(costs),
    )


def _is_failure(action: str, kind: str) -> bool:
    return kind not in ("completed", "cancelled") and action in AFTER_FAILURES


def _gaps(lines: Sequence[Line], timeline: Timeline) -> Iterator[float]:
    """Yield the times between consecutive checkpoints of an attempt.

    Where names state steps, a file that is overwritten beside them is mostly of the same save.
    """
    known = [line for line in lines if isinstance(line, CheckpointLine)]
    stated = [line for line in known if not line.counted] or known
    saves = sorted({(line.written_t, line.step) for line in stated})
    for attempt in timeline.attempts:
        end = attempt.end if attempt.end is not None else math.inf
        own = [t for t, _ in saves if attempt.start <= t <= end]
        yield from (later - earlier for earlier, later in pairwise(own))


def _costs(lines: Sequence[Line]) -> list[float]:
    """Return how long ranks stayed in the stage `checkpoint`, where they reported it: the newest hundred."""
    pauses = [line.pauses for line in lines if isinstance(line, PaceLine)]
    return list(pauses[-1].get("checkpoint", ())) if pauses else []
