"""An agent's process on this machine, whichever orchestrator started it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from prefect_ft.worker.agent import PID
from prefect_ft.worker.processes import Held, started


class AgentProcess(Held):
    """Held by a pidfd, so that a reused pid is never mistaken for it; `child` is reaped."""

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        """Raises OSError where the process is gone."""
        super().__init__(pid)
        self._child = child

    def ends(self, timeout_s: float) -> bool:
        """Wait for its end, and reap it; return whether it ended in time."""
        ended = super().ends(timeout_s)
        if ended and self._child is not None:
            self._child.wait()
        return ended


def process_of(home: Path, child: subprocess.Popen[bytes] | None = None) -> AgentProcess | None:
    """Return the live agent of a worker's directory, by the pid file there; None if there is none.

    `child` is the agent where this process started it.
    """
    if child is not None:
        return AgentProcess(child.pid, child) if child.poll() is None else None
    try:
        pid, start = map(int, (home / PID).read_text().split())
        process = AgentProcess(pid)
    except (OSError, ValueError):
        return None
    if started(pid) == start:  # asked while the process is held
        return process
    process.close()
    return None
