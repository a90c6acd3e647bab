"""Samples of an attempt's ranks: taken once a period, sent to the attached orchestrator, and kept for the next one.

They are taken whether or not an orchestrator is attached. The number kept is bounded: counts only grow, so
dropping every other sample loses only detail.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional

from prefect_ft import heartbeat
from prefect_ft.worker.container import ContainerMeter
from prefect_ft.worker.devices import DeviceMeter
from prefect_ft.worker.gang import Rank
from prefect_ft.worker.loop import Loop
from prefect_ft.worker.meters import ForestMeter, Total
from prefect_ft.worker.reporter import Reporter

KEPT = 360
"""How many samples of one attempt are kept: an hour at the default period, longer with less detail."""

LATE = 2.0
"""A pause longer than this many periods does not count as watched: the agent was delayed, or the machine slept."""


class Sampling:
    """`begin` and `end` frame an attempt."""

    def __init__(
        self,
        period_s: float,
        devices: Callable[[], DeviceMeter],
        container: Optional[ContainerMeter],
        loop: Loop,
        reporter: Reporter,
    ) -> None:
        """`devices` makes the meter of the worker's devices when it is first needed; `container` is its own."""
        self._usual_s = self._period_s = period_s
        self._make_devices = devices
        self._devices: Optional[DeviceMeter] = None
        self._container = container
        self._loop, self._reporter = loop, reporter
        self._ranks: List[Rank] = []
        self._forest: Optional[ForestMeter] = None
        self._kept: List[Dict[str, Any]] = []
        self._unsent = 0
        """How many of the newest have not been sent."""
        self._watched_s = 0.0
        self._last_s = 0.0

    def begin(self, ranks: List[Rank]) -> None:
        """Watch the ranks of an attempt."""
        self.end()
        self._ranks = ranks
        self._forest = ForestMeter({rank.number: rank.process.pid for rank in ranks})
        self._devices = self._devices or self._make_devices()
        self._watched_s, self._last_s = 0.0, time.monotonic()
        self._take()  # sent with the next one, which is compared to it
        self._loop.after("sample", self._period_s, self._sample)

    def end(self) -> None:
        """Forget the attempt. Idempotent."""
        self._loop.drop("sample")
        if self._devices is not None:
            self._devices.rest()
        if self._forest is not None:
            self._forest.close()
        self._forest = None
        self._kept.clear()
        self._unsent = 0
        self._period_s = self._usual_s

    def watch(self, period_s: float) -> None:
        """Take samples at this period until the attached orchestrator has gone."""
        self._period_s = min(period_s, self._usual_s)
        if self._loop.is_set("sample"):
            self._loop.drop("sample")
            self._loop.after("sample", self._period_s, self._sample)

    def reader_gone(self) -> None:
        """Go back to the usual period."""
        self._period_s = self._usual_s

    def send_all(self) -> None:
        """Send every kept sample to the orchestrator that has just attached."""
        self._unsent = len(self._kept)
        self._send_unsent()

    def _sample(self) -> None:
        self._take()
        self._send_unsent()
        if any(rank.exit is None for rank in self._ranks):
            self._loop.after("sample", self._period_s, self._sample)

    def _take(self) -> None:
        assert self._forest is not None
        self._count_time()
        if self._devices is not None:
            self._devices.ask()
        totals = self._forest.read()
        self._keep(
            {
                "watched_s": round(self._watched_s, 3),
                "devices": self._devices.latest if self._devices is not None else None,
                "container": self._container.read() if self._container is not None else None,
                "ranks": {rank.number: self._rank(rank, totals.get(rank.number)) for rank in self._ranks},
            }
        )

    def _count_time(self) -> None:
        """Count the time since the last sample as watched; CLOCK_MONOTONIC stops while the machine sleeps."""
        now_s = time.monotonic()
        self._watched_s += min(now_s - self._last_s, LATE * self._period_s)
        self._last_s = now_s

    def _rank(self, rank: Rank, total: Optional[Total]) -> Dict[str, Any]:
        beat = rank.last_beat()
        return {
            "over": rank.exit is not None,
            "state": total.state if total is not None else None,
            "cpu_s": round(total.cpu_s, 3) if total is not None else None,
            "wait_s": round(total.wait_s, 3) if total is not None and total.wait_s is not None else None,
            "io": total.io if total is not None else None,
            "output": rank.spool.printed(),
            "beats": beat.beats if beat is not None else 0,
            "beat_s": self._beat_s(beat),
            "step": beat.step if beat is not None else None,
            "stage": beat.stage if beat is not None else None,
        }

    def _beat_s(self, beat: Optional[heartbeat.Beat]) -> Optional[float]:
        """Return when a beat was, in watched time; correct unless the machine has slept since."""
        if beat is None:
            return None
        age_s = (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - beat.t_ns) / 1e9
        return round(self._watched_s - age_s, 3)

    def _keep(self, sample: Dict[str, Any]) -> None:
        self._kept.append(sample)
        self._unsent += 1
        if len(self._kept) > KEPT:
            del self._kept[-2::-2]
            self._unsent = min(self._unsent, len(self._kept))

    def _send_unsent(self) -> None:
        while self._unsent and self._reporter.has_room:
            sample = self._kept[-self._unsent]
            self._unsent -= 1
            self._reporter.send("sample", past=self._unsent > 0, **sample)
