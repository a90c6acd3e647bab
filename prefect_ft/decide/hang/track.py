"""One rank according to its samples: since when it has been without progress, without I/O, in one state."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from prefect_ft.decide.hang.facts import FIRST_STEP, Limits, RankSample
from prefect_ft.decide.hang.pace import Pace, median

MAX_LOADS = 400
"""How many samples of utilisation are kept; beyond that every other one is dropped. Even, so the newest one stays."""

MIN_LOADS = 5
"""The fewest samples for a statement about utilisation."""

_BEFORE_STEPS = ("train", "load", "compile")
"""The stages that lead to the first step."""

MIN_INTERVAL_S = 0.1
"""The shortest interval over which load is measured: process clocks count hundredths of a second."""

STILL_STATES = {"T": "stopped", "t": "stopped by a tracer", "D": "in the kernel, not to be interrupted"}
"""States in which a process can do nothing, by their letters in /proc."""

ZOMBIE = "Z"

FLAT_CORES, FLAT_SHARE, TICK_S = 0.05, 0.1, 0.02
"""How much a flat load may vary: in cores, as a share of its median, and the clock's resolution."""

FLAT_PERCENT = 1.0
"""The same for a device's utilisation."""

STARVED = 0.8
"""Share of the time that it wanted to compute in which a rank got no processor: above it, the machine is at fault."""

BUSY_CORES = 0.5
"""Load above which a rank that hangs is busy, not idle."""


class Load(NamedTuple):
    """How long a rank has computed, and was ready without a processor, up to a moment of watched time."""

    watched_s: float
    cpu_s: float
    wait_s: float


class Track:
    """One rank. Ages are seconds of its worker's watched time."""

    def __init__(self, worker: int, pace: Pace) -> None:
        self.worker = worker
        self.last = RankSample()
        self.now_s = 0.0
        self.progress_s = self.io_s = self.state_s = 0.0
        """When there was last progress, last process I/O, and when its state last changed."""
        self.has_stepped = False
        """Whether there was a step after the first sign of life."""
        self.knows_io = False
        self.loads: deque[Load] = deque()
        self.steps: deque[tuple[float, int]] = deque(maxlen=MAX_LOADS)
        """When each step was seen."""
        self._pace = pace
        self._delayed_s = 0.0
        """How long it was ready but got no processor, or its container was throttled."""
        self.began_s: float | None = None
        """When it was first seen."""

    @property
    def speaks(self) -> bool:
        """Whether it has ever sent a heartbeat."""
        return self.last.beats > 0

    @property
    def silent_s(self) -> float:
        """How long it has reported no progress."""
        return self.now_s - self.progress_s

    @property
    def io_quiet_s(self) -> float:
        """How long none of its processes has read or written anything."""
        return self.now_s - self.io_s

    @property
    def still_s(self) -> float:
        """How long it has been in a state in which it can do nothing."""
        return self.now_s - self.state_s if self.stillness is not None else 0.0

    @property
    def stillness(self) -> str | None:
        """What keeps it from doing anything, in words."""
        if self.last.state == ZOMBIE:
            return "its main thread has ended, others have not"
        return STILL_STATES.get(self.last.state)

    @property
    def phase_of_life(self) -> str:
        """Its stage, or the time before the first step."""
        stage = self.last.stage or "train"
        return FIRST_STEP if not self.has_stepped and stage in _BEFORE_STEPS else stage

    def limit_s(self, limits: Limits) -> float:
        """Return how long it may be quiet: by the stage that it reports, if it reports one."""
        if not self.speaks:
            # It may report later: before the first step a limit that the user gave holds for it too.
            return max(limits.hang_s, limits.first_step_s or 0.0)
        own_s = self._pace.limit_s(self.phase_of_life, limits)
        stage = self.last.stage
        if self.phase_of_life != FIRST_STEP or stage is None:
            return own_s
        stage_s = limits.given(stage)
        if stage_s is None:
            stage_s = own_s if limits.first_step_s else self._pace.limit_s(stage, limits)
        return max(own_s, stage_s)

    def take(self, now_s: float, sample: RankSample, throttled_s: float = 0.0) -> None:
        """Add a sample; `throttled_s` is how long its container was throttled since the last one.

        The kernel counts waiting only for the main thread, but throttling for any thread.
        """
        if self.began_s is None:
            self.began_s = self.progress_s = self.io_s = self.state_s = now_s
        else:
            self._compare(now_s, sample)
            waited_s = (sample.wait_s or 0.0) - (self.last.wait_s or 0.0)
            self._delayed_s += max(waited_s, throttled_s)
        self.now_s, self.last = now_s, sample
        self.knows_io = sample.io is not None
        self._keep_load(Load(now_s, sample.cpu_s, self._delayed_s))
        if sample.step is not None:
            self.steps.append((now_s, sample.step))

    def restart_quiet(self) -> None:
        """Restart the count of how long it has been quiet: what it may have waited for has just come."""
        self.progress_s = self.io_s = self.state_s = self.now_s

    def _compare(self, now_s: float, sample: RankSample) -> None:
        before = self.last
        if sample.io is None or sample.io != before.io or sample.output != before.output:
            self.io_s = now_s
        if sample.state != before.state:
            self.state_s = now_s
        if self._progresses(before, sample):
            at_s = now_s if sample.beat_s is None else min(max(sample.beat_s, self.now_s), now_s)
            self._pace.note(self.phase_of_life, at_s - self.progress_s)
            self.progress_s = at_s
            is_second = before.beats > 0 and sample.step is None
            self.has_stepped |= is_second or (before.step is not None and sample.step != before.step)

    def _progresses(self, before: RankSample, sample: RankSample) -> bool:
        """Whether there is progress: a step, another stage, or a heartbeat where there can be no step."""
        if sample.step != before.step or sample.stage != before.stage:
            return True
        steps_count = sample.step is not None and (sample.stage or "train") == "train"
        return sample.beats != before.beats and (not steps_count or before.beats == 0)

    def _keep_load(self, load: Load) -> None:
        self.loads.append(load)
        if len(self.loads) > MAX_LOADS:
            self.loads = deque(list(self.loads)[::2])

    # -- utilisation ------------------------------------------------------------------------------

    def flat_load(self, window_s: float) -> float | None:
        """Return the cores that it has wanted all through the window if that was always as much; else `None`.

        By variance and median, of what it computed and what it would have with a processor of its own: on a busy
        machine a loop gets now more, now less, and wants as much as ever; what works by fits and starts may get
        its even share, and wants now more, now less.
        """
        wanted = self._shares(window_s)
        if len(wanted) < MIN_LOADS:
            return None
        slack = FLAT_CORES + TICK_S / (window_s / len(wanted))
        return median(wanted) if is_flat(wanted, slack, FLAT_SHARE) else None

    def is_starved(self, window_s: float) -> bool:
        """Whether it is ready but gets hardly any processor: then the machine is slow, not the rank."""
        loads = self._window(window_s)
        if not loads:
            return False
        first, last = loads[0], loads[-1]
        waited_s, computed_s = last.wait_s - first.wait_s, last.cpu_s - first.cpu_s
        wanted_s = waited_s + computed_s
        is_wanting = wanted_s > FLAT_CORES * (last.watched_s - first.watched_s)
        return is_wanting and waited_s > STARVED * wanted_s

    def _window(self, window_s: float) -> list[Load]:
        since_s = self.now_s - window_s
        return [load for load in self.loads if load.watched_s >= since_s]

    def _shares(self, window_s: float) -> list[float]:
        wanted = []
        loads = iter(self._window(window_s))
        earlier = next(loads, None)
        for later in loads:
            assert earlier is not None
            elapsed_s = later.watched_s - earlier.watched_s
            if elapsed_s < min(MIN_INTERVAL_S, window_s / (2 * MIN_LOADS)):
                continue
            wanted.append((later.cpu_s - earlier.cpu_s + later.wait_s - earlier.wait_s) / elapsed_s)
            earlier = later
        return wanted


def is_flat(values: Sequence[float], slack: float, share: float) -> bool:
    """Return whether values stay constant, by their variance about the median."""
    middle = median(values)
    allowed = slack + share * abs(middle)
    variance = sum((value - middle) ** 2 for value in values) / len(values)
    return variance <= allowed**2
