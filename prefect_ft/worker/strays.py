"""Processes that outlived their agent: found by the worker's directory that they got or write into, and ended."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Dict, Iterator

from prefect_ft.worker.processes import descendants, kill_and_wait, parent

KILLED_TIMEOUT_S = 5.0
"""How long to wait for killed processes; those still stuck in the kernel then are left."""


def end_strays(home: str) -> None:
    """SIGKILL what outlived an agent, and an orphaned agent itself. `home` is a worker's directory."""
    deadline = time.monotonic() + KILLED_TIMEOUT_S
    while (found := list(_strays(home))) and (left_s := deadline - time.monotonic()) > 0:
        family = {process for stray in found for process in (stray, *descendants(stray))} - {os.getpid()}
        kill_and_wait(
            sorted(family),  # the agent first: it started the others, and must not report their ends
            lambda pid, family=family: _belongs(pid, home) or parent(pid) in family,  # type: ignore[misc]
            left_s,
        )


def _strays(home: str) -> Iterator[int]:
    own = os.getpid()
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return (pid for pid in pids if pid != own and _belongs(pid, home))


def _belongs(pid: int, home: str) -> bool:
    """Whether a living process is of the worker with this directory.

    That is one that was given a place in it, or writes into it. Reading from it (`tail -f`) or having it
    as working directory does not count.
    """
    inside = f"{home}/"
    with contextlib.suppress(OSError, ValueError, KeyError):  # gone, or another user's
        environment = _environment(pid)
        if any(environment.get(name, "").startswith(inside) for name in ("TMPDIR", "PREFECT_FT_HEARTBEAT")):
            return True
        descriptors = f"/proc/{pid}/fd"
        return any(
            os.readlink(f"{descriptors}/{name}").startswith(inside) and _is_written_to(pid, name)
            for name in os.listdir(descriptors)
        )
    return False


def _environment(pid: int) -> Dict[str, str]:
    with open(f"/proc/{pid}/environ", "rb") as file:
        words = os.fsdecode(file.read()).split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def _is_written_to(pid: int, descriptor: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{descriptor}", encoding="ascii", errors="replace") as file:
        fields = dict(line.split(":", 1) for line in file.read().splitlines() if ":" in line)
    return int(fields["flags"], 8) & os.O_ACCMODE != os.O_RDONLY
