"""A phase's clock: durations by CLOCK_BOOTTIME, records in UTC. The only place that reads the time."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone


class PhaseClock:
    """Seconds since the phase began, monotonic, including time in which the machine is suspended."""

    def __init__(self, start_s: float = 0.0) -> None:
        """`start_s`: the time to continue from, for a phase that an earlier process began."""
        self._zero_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - int(start_s * 1e9)

    def now(self) -> float:
        """Return the seconds since the phase began."""
        return self.at(time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def at(self, boottime_ns: int) -> float:
        """Return the phase's time at a moment of this machine's CLOCK_BOOTTIME."""
        return (boottime_ns - self._zero_ns) / 1e9

    def at_wall(self, epoch_s: float) -> float:
        """Return the phase's time at a moment of the wall clock, correct unless that has been set since."""
        return self.now() - (self.epoch() - epoch_s)

    def epoch(self) -> float:
        """Return the seconds since the epoch, as files' times count them."""
        return time.time()


class BootClock:
    """CLOCK_BOOTTIME in seconds: monotonic, the same for all processes of a boot; and waiting by it."""

    def now(self) -> float:
        """Return the seconds since the machine's start."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


def seconds_since(utc: str) -> float:
    """Return the seconds, by the wall clock, since a record's time."""
    return time.time() - datetime.fromisoformat(utc.replace("Z", "+00:00")).timestamp()


def utc_after(utc: str, seconds: float) -> str | None:
    """Return a record's time so many seconds later; None: out of range."""
    try:
        later = datetime.fromisoformat(utc.replace("Z", "+00:00")) + timedelta(seconds=seconds)
    except OverflowError:
        return None
    return later.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_at(epoch_s: float) -> str:
    """Return a time in seconds since the epoch in the form of records, ISO 8601 in UTC with milliseconds."""
    then = datetime.fromtimestamp(epoch_s, timezone.utc)
    return then.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch_now() -> float:
    """Return the seconds since the epoch, as files' times count them."""
    return time.time()


def utc_now() -> str:
    """Return the wall clock's time for records, ISO 8601 in UTC with milliseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
