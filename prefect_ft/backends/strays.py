"""What outlived its agent: found by the worker's directory that it was given or writes into, and ended."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from prefect_ft.worker.processes import descendants, kill_and_wait, parent

KILLED_TIMEOUT_S = 5.0
"""How long is waited for what was killed; what sits in the kernel then is left to it."""


def end_strays(home: Path) -> None:
    """SIGKILL what outlived an agent, and an agent that is nobody's child any more."""
    deadline = time.monotonic() + KILLED_TIMEOUT_S
    while (found := list(_strays(home))) and (left_s := deadline - time.monotonic()) > 0:
        family = {process for stray in found for process in (stray, *descendants(stray))} - {os.getpid()}
        kill_and_wait(
            sorted(family),  # the agent first: it started the others, and must not tell of their ends
            lambda pid, family=family: _belongs(pid, home) or parent(pid) in family,  # type: ignore[misc]
            left_s,
        )


def _strays(home: Path) -> Iterator[int]:
    return (pid for pid in psutil.pids() if pid != os.getpid() and _belongs(pid, home))


def _belongs(pid: int, home: Path) -> bool:
    """Whether a living process is of the worker with this directory.

    Then it was given a place in it, or writes into it. Only to read from it (`tail -f`) or to stand in
    it makes nobody a stray.
    """
    inside = f"{home}/"
    with suppress(OSError, psutil.Error):  # gone, or another user's
        environment = psutil.Process(pid).environ()
        if any(environment.get(name, "").startswith(inside) for name in ("TMPDIR", "PREFECT_FT_HEARTBEAT")):
            return True
        return any(
            os.readlink(link).startswith(inside) and _is_written_to(pid, link.name)
            for link in Path(f"/proc/{pid}/fd").iterdir()
        )
    return False


def _is_written_to(pid: int, descriptor: str) -> bool:
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines()
    )
    return int(fields["flags"], 8) & os.O_ACCMODE != os.O_RDONLY
