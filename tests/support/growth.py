"""Whether what is done costs in proportion to what it is done with, by the processor's time of this thread alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

TIMES = (4, 16)
"""How many times as long as the shortest; where the cost is a power, the first tells without the patience for more."""

SLACK = 3
"""What is so many times as long may cost so many times as much, and this times that."""

FLOOR_S = 100e-6
"""Shorter times say nothing of what is measured."""

TRIES = 5


def cost_s(work: Callable[[], Any]) -> float:
    """Return the processor time of some work."""
    began_s = time.thread_time()
    work()
    return time.thread_time() - began_s


def is_linear(work: Callable[[int], Callable[[], Any]], length: int) -> bool:
    """Return whether the work that `work(length)` gives costs no more than its length; disturbed looks are repeated.

    `work` prepares it for several lengths up to this one; what that costs does not count.
    """
    short = work(length // TIMES[-1])
    short()  # what is made at the first use is made
    for times in TIMES:
        long, limit = work(length * times // TIMES[-1]), SLACK * times
        if not any(cost_s(long) <= limit * max(cost_s(short), FLOOR_S) for _ in range(TRIES)):
            return False
    return True
