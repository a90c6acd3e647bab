"""How many ranks this machine can start: the smallest limit of processes, descriptors and memory.

An upper bound: other processes, and what ranks do, take more. Unknown limits do not count.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from prefect_ft.amounts import count

AGENT_TASKS = 2
"""Processes and threads of an agent: itself, and the one that verifies checkpoints."""

RANK_FILES, AGENT_FILES = 2, 32
"""Descriptors that an agent holds for each rank (its process and its output), and for itself."""

RANK_BYTES = 1 << 20
"""The least that a process takes: stack, page tables, the C library's data."""

_UNLIMITED = 1 << 62
"""From here on a value of a version 1 control group means no limit."""


class Limit(NamedTuple):
    """How many ranks each of the workers may have, and what limits them."""

    ranks: int
    why: str


class Machine(NamedTuple):
    """Where the kernel's files are, and this process's own limits; None: it has none.

    `is_grouped`: agents stay in this process's control groups.
    """

    proc: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")
    processes: int | None = None
    files: int | None = None
    is_grouped: bool = True


def this_machine(*, is_grouped: bool) -> Machine:
    """Return this machine as this process may use it."""
    is_bound = os.geteuid() != 0  # the kernel does not apply the limit to root
    return Machine(
        processes=_soft(resource.RLIMIT_NPROC) if is_bound else None,
        files=_soft(resource.RLIMIT_NOFILE),
        is_grouped=is_grouped,
    )


def most_ranks(machine: Machine, workers: int) -> Limit | None:
    """Return how many ranks each of so many workers may have on a machine; `None`: no limit is known."""
    limits = [
        Limit(total // workers - AGENT_TASKS, f"{why} leaves {count(total, 'process', 'processes')}")
        for total, why in _tasks(machine)
    ]
    limits += [
        Limit(total // RANK_BYTES // workers, f"{why} is {total >> 20} MiB, and a process takes one or more")
        for total, why in _memory(machine)
    ]
    if machine.files is not None:
        ranks = (machine.files - AGENT_FILES) // RANK_FILES
        why = f"the limit of open files (ulimit -n) is {machine.files}, and an agent needs {RANK_FILES} for a rank"
        limits.append(Limit(ranks, why))
    return min(limits, default=None)


def _soft(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _tasks(machine: Machine) -> Iterator[tuple[int, str]]:
    """Return how many processes may be started by each limit, and its name."""
    if machine.processes is not None:
        yield machine.processes, "the user's limit of processes (ulimit -u)"
    for name in ("kernel/pid_max", "kernel/threads-max"):
        if (most := _number(machine.proc / "sys" / name)) is not None:
            yield most, f"{name.replace('/', '.')} (sysctl)"
    for group in _groups(machine, "pids"):
        most, taken = _number(group / "pids.max"), _number(group / "pids.current")
        if most is not None:
            yield max(0, most - (taken or 0)), f"pids.max of the control group {group}"


def _memory(machine: Machine) -> Iterator[tuple[int, str]]:
    """Return how much memory there is by each limit, in bytes, and its name."""
    with suppress(OSError, ValueError, IndexError):
        words = (machine.proc / "meminfo").read_text().split()
        yield int(words[words.index("MemTotal:") + 1]) << 10, "the machine's memory"
    for group in _groups(machine, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (most := _number(group / name)) is not None and most < _UNLIMITED:
                yield most, f"{name} of the control group {group}"


def _groups(machine: Machine, controller: str) -> Iterator[Path]:
    """Return this process's control group for a controller and its parents; of either version."""
    if not machine.is_grouped:
        return
    with suppress(OSError):
        for line in (machine.proc / "self/cgroup").read_text().splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers and controller not in controllers.split(","):
                continue
            root = machine.cgroups / controller if controllers else machine.cgroups
            inner = root / path.strip("/")
            yield inner
            yield from (group for group in inner.parents if group.is_relative_to(root))


def _number(path: Path) -> int | None:
    """Return the number in a file; `None` where it holds none, like `max`, or does not exist."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
