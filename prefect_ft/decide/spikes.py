"""Unusual values of a training: NaN, infinity, jumps. Pure.

A value is compared with the last ones: by its distance from their median, in units of their median absolute deviation
scaled to a standard deviation (the robust z-score of B. Iglewicz and D. Hoaglin, How to Detect and Handle Outliers,
1993). Only upward jumps count: a loss that falls fast is not a failure.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

Quantity = Literal["loss", "grad_norm"]
Oddness = Literal["nan", "infinite", "spike"]
Response = Literal["off", "report", "act"]

SIGMA = 1.4826
"""From the median absolute deviation to the standard deviation of what is normally distributed."""

LEAST_SPREAD = 0.01
"""The smallest deviation that is assumed, as a share of the median: for a flat loss every move would be a jump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a value is unusual: more than `deviations` above the median of the last `window` ones.

    Until there are `least` values only non-finite ones are reported.
    """

    window: int
    least: int
    deviations: float


class Odd(NamedTuple):
    """An unusual value. `usual` is the median before it, `deviations` its distance; None: not known."""

    step: int
    quantity: Quantity
    oddness: Oddness
    value: float
    usual: float | None = None
    deviations: float | None = None

    @property
    def text(self) -> str:
        """What it is in words."""
        name = "loss" if self.quantity == "loss" else "gradient norm"
        if self.oddness == "nan":
            return f"{name} is NaN at step {self.step}"
        if self.usual is None or self.deviations is None:
            return f"{name} is infinite at step {self.step}"
        where = f"{self.deviations:.3g} deviations above {self.usual:.6g}"
        return f"{name} is {self.value:.6g} at step {self.step}, {where}"


class Series:
    """The values of one quantity of one rank. Of consecutive outliers the first is reported."""

    def __init__(self, quantity: Quantity, limits: Limits) -> None:
        self._quantity, self._limits = quantity, limits
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._odd_ones = 0
        """How many of the last values were odd, one after the other."""

    def take(self, step: int, value: float) -> Odd | None:
        """Take the next value; return it if it is unusual and the one before it was not."""
        odd = self._judge(step, value)
        if odd is None:
            self._odd_ones = 0
            self._add(value)
            return None
        self._odd_ones += 1
        if self._odd_ones > self._limits.window and odd.oddness == "spike":
            self._reset(value)  # it has become usual
        return odd if self._odd_ones == 1 else None

    def _judge(self, step: int, value: float) -> Odd | None:
        if math.isnan(value):
            return Odd(step, self._quantity, "nan", value)
        if math.isinf(value):
            return Odd(step, self._quantity, "infinite", value)
        if len(self._sorted) < self._limits.least:
            return None
        usual = _median(self._sorted)
        spread = max(SIGMA * _deviation(self._sorted, usual), LEAST_SPREAD * abs(usual), 1e-300)
        deviations = (value - usual) / spread
        if deviations <= self._limits.deviations:
            return None
        return Odd(step, self._quantity, "spike", value, usual, deviations)

    def _add(self, value: float) -> None:
        self._recent.append(value)
        insort(self._sorted, value)
        if len(self._recent) > self._limits.window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    def _reset(self, value: float) -> None:
        self._recent.clear()
        self._sorted.clear()
        self._odd_ones = 0
        self._add(value)


def _median(values: list[float]) -> float:
    """Return the median of values that are in order."""
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else values[middle - 1] / 2 + values[middle] / 2


def _deviation(values: list[float], median: float) -> float:
    """Return the median of the distances from the median, of values that are in order."""
    return _median(sorted(abs(value - median) for value in values))
