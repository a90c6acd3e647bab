"""What the kernel counts for the worker's container as a whole. Judges nothing.

Reads the files of the agent's own control group, as they are mounted into its container, of either version.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Dict, List, Optional, Tuple

ROOT = "/sys/fs/cgroup"

_READ = 4096

_COUNTERS: Dict[str, List[Tuple[str, str, float]]] = {
    "throttled_s": [("cpu.stat", "throttled_usec", 1e-6), ("cpu/cpu.stat", "throttled_time", 1e-9)],
    "oom_kills": [("memory.events", "oom_kill", 1), ("memory/memory.oom_control", "oom_kill", 1)],
}
"""The source of each count, in version 2 and version 1: the file, the line, and the unit in ours."""


class ContainerMeter:
    """One container. Files are opened once, as those of processes are."""

    def __init__(self, root: str = ROOT) -> None:
        self._sources: Dict[str, Tuple[int, bytes, float]] = {}
        for name, places in _COUNTERS.items():
            for path, line, unit in places:
                with suppress(OSError):
                    fd = os.open(os.path.join(root, path), os.O_RDONLY | os.O_CLOEXEC)
                    self._sources[name] = fd, line.encode(), unit
                    break

    def read(self) -> Optional[Dict[str, Optional[float]]]:
        """Return the counts since the container began, None for those that the kernel lacks; None: it has none."""
        counts = {name: self._count(name) for name in _COUNTERS}
        return None if all(value is None for value in counts.values()) else counts

    def oom_kills(self) -> int:
        """Return how many processes the kernel has killed because the container's memory was used up; 0: none known."""
        return int(self._count("oom_kills") or 0)

    def _count(self, name: str) -> Optional[float]:
        if name not in self._sources:
            return None
        fd, wanted, unit = self._sources[name]
        with suppress(OSError, ValueError):
            for line in os.pread(fd, _READ, 0).splitlines():
                word, _, value = line.partition(b" ")
                if word == wanted:
                    return round(int(value) * unit, 3)
        return None


def own_container() -> Optional[ContainerMeter]:
    """Return the meter of this process's container; None where it is not the first process of one."""
    return ContainerMeter() if os.getpid() == 1 else None
