"""What the kernel reports of processes: I/O, time computed and waited, state. Reads /proc and judges nothing.

Files are opened once and read repeatedly, which is most of what makes it cheap.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from typing import Dict, Iterable, List, NamedTuple, Optional, Set

from prefect_ft.worker import processes

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_READ = 4096

MAX_FOLLOWED = 200
"""The most processes of a worker to follow, with three descriptors each: an agent has 1024, and needs others."""

WALK_SHARE = 2000
"""After a search for new processes, the pause as a multiple of its duration: bounds the cost of large trees."""


class Reading(NamedTuple):
    """One process. `io` counts calls and bytes together; None: the kernel does not report it."""

    state: str
    session: int
    cpu_s: float
    io: Optional[int]
    wait_s: Optional[float]


class ProcessMeter:
    """One process's files in /proc, for as long as it is of interest."""

    def __init__(self, pid: int) -> None:
        """Raises OSError where there is no such process."""
        self.pid = pid
        self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._io = _opened(f"/proc/{pid}/io")
        self._schedule = _opened(f"/proc/{pid}/schedstat")

    def read(self) -> Optional[Reading]:
        """Return its current reading; None: it is gone."""
        try:
            fields = os.pread(self._stat, _READ, 0).rpartition(b")")[2].split()
        except OSError:
            return None
        if len(fields) < 13:
            return None
        cpu_s = (int(fields[11]) + int(fields[12])) * _TICK_S
        return Reading(fields[0].decode(), int(fields[3]), cpu_s, self._read_io(), self._read_wait_s())

    def _read_io(self) -> Optional[int]:
        lines = _content(self._io).splitlines()
        return sum(int(line.rpartition(b":")[2]) for line in lines) if lines else None

    def _read_wait_s(self) -> Optional[float]:
        """Return how long the main thread was ready but had no processor."""
        words = _content(self._schedule).split()
        return int(words[1]) / 1e9 if len(words) > 1 else None

    def close(self) -> None:
        for fd in (self._stat, self._io, self._schedule):
            if fd is not None:
                os.close(fd)


def _opened(path: str) -> Optional[int]:
    """Open a file that some kernels lack, and some users may not read."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _content(fd: Optional[int]) -> bytes:
    if fd is not None:
        with contextlib.suppress(OSError):
            return os.pread(fd, _READ, 0)
    return b""


class Total(NamedTuple):
    """The sums of a rank and its descendants since the first reading; `state` is that of the rank's own process."""

    state: str
    cpu_s: float
    io: Optional[int]
    wait_s: Optional[float]


class TreeMeter:
    """The processes of one rank. Its sums only grow, even when processes end."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._meters: Dict[int, ProcessMeter] = {}
        self._last: Dict[int, Reading] = {}
        self._cpu_s = 0.0
        self._io = 0

    def follow(self, pids: Iterable[int], most: int = MAX_FOLLOWED) -> None:
        """Follow these processes from now on, besides the rank itself; only the first `most` of them."""
        wanted: Set[int] = {self._pid, *itertools.islice(pids, most - 1)}
        for pid in set(self._meters) - wanted:
            self._drop(pid)
        for pid in wanted - set(self._meters):
            with contextlib.suppress(OSError):
                self._meters[pid] = ProcessMeter(pid)

    def read(self) -> Optional[Total]:
        """Return the rank's sums; None: its process is gone."""
        for pid, meter in list(self._meters.items()):
            reading = meter.read()
            if reading is None:
                self._drop(pid)
                continue
            self._add(self._last.get(pid), reading)
            self._last[pid] = reading
        main = self._last.get(self._pid)
        if main is None:
            return None
        return Total(main.state, self._cpu_s, None if main.io is None else self._io, main.wait_s)

    def _add(self, before: Optional[Reading], now: Reading) -> None:
        self._cpu_s += now.cpu_s - (before.cpu_s if before is not None else 0.0)
        known = before.io if before is not None and before.io is not None else 0
        self._io += max(0, (now.io or 0) - known)

    def _drop(self, pid: int) -> None:
        self._last.pop(pid, None)
        self._meters.pop(pid).close()

    def close(self) -> None:
        for pid in list(self._meters):
            self._drop(pid)


class ForestMeter:
    """The processes of all ranks of a worker, searched for periodically."""

    def __init__(self, pids: Dict[int, int]) -> None:
        """`pids` maps each rank to its process."""
        self._pids = pids
        self._trees = {rank: TreeMeter(pid) for rank, pid in pids.items()}
        self._next_walk_s = 0.0

    def read(self) -> Dict[int, Total]:
        """Return the sums of each rank that has a process."""
        began_s = time.monotonic()
        if began_s >= self._next_walk_s:
            self._walk()
            self._next_walk_s = began_s + WALK_SHARE * (time.monotonic() - began_s)
        totals = {rank: tree.read() for rank, tree in self._trees.items()}
        return {rank: total for rank, total in totals.items() if total is not None}

    def _walk(self) -> None:
        """Find the processes of each rank: those below it, and orphans of its session."""
        orphans = self._orphans()
        most = max(1, MAX_FOLLOWED // len(self._pids)) if self._pids else 0
        for rank, pid in self._pids.items():
            self._trees[rank].follow([*processes.descendants(pid), *orphans.get(pid, ())], most)

    def _orphans(self) -> Dict[int, List[int]]:
        """Return orphans adopted by this process, by the rank whose session they are in."""
        ranks = set(self._pids.values())
        found: Dict[int, List[int]] = {}
        for pid in processes.children(os.getpid()):
            session = processes.session(pid)
            if pid not in ranks and session in ranks:
                found.setdefault(session, []).extend((pid, *processes.descendants(pid)))
        return found

    def close(self) -> None:
        for tree in self._trees.values():
            tree.close()
