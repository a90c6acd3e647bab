"""Kills a rank that cannot be interrupted: a small process beside it, with a deadline that the rank moves.

Owns that process and the shared page of memory. It works while the rank is stopped, or stuck in C with
the interpreter.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import sys
import time

from prefect_ft.worker.processes import Held

_PAGE = mmap.PAGESIZE
_MAX_SLEEP_S = 1.0
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_START = """
import sys
sys.path.insert(0, sys.argv[1])
from prefect_ft.inprocess.killer import main
main(*map(int, sys.argv[2:]))
"""


class Killer:
    """The rank's side. Before the first `allow` nothing is killed."""

    def __init__(self, grace_s: float = 0.0) -> None:
        """Raises OSError where the process cannot be started.

        `grace_s` is how long a rank may live after SIGTERM before it gets SIGKILL; 0: only SIGKILL is sent.
        """
        page = os.memfd_create("prefect-ft-deadline")
        try:
            os.ftruncate(page, _PAGE)
            self._deadline_ns = memoryview(mmap.mmap(page, _PAGE)).cast("q")
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    "-c",
                    _START,
                    _ROOT,
                    str(page),
                    str(os.getpid()),
                    str(round(1000 * grace_s)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(page,),
                start_new_session=True,
            )
            self._held = Held(self._process.pid)
        finally:
            os.close(page)

    def allow(self, until_s: float) -> None:
        """Have the rank killed at that time of the monotonic clock, unless the deadline is moved before."""
        self._deadline_ns[0] = int(until_s * 1e9)

    def spare(self) -> None:
        """Clear the deadline until the next `allow`."""
        self._deadline_ns[0] = 0

    def close(self) -> None:
        """End the process without killing the rank. Idempotent."""
        self.spare()
        if self._process.returncode is None:
            self._held.send(signal.SIGKILL)
            self._held.close()
            self._process.wait()


def main(page: int, pid: int, grace_ms: int) -> None:
    """Wait for the deadline or the rank's end; the page's descriptor is inherited."""
    deadline_ns = memoryview(mmap.mmap(page, _PAGE, prot=mmap.PROT_READ)).cast("q")
    with contextlib.suppress(ProcessLookupError):
        rank = Held(pid)
        if os.getppid() != pid:  # the rank has ended, and its pid may have been reused
            return
        while not rank.ends(_sleep_s(deadline_ns[0])):
            due_ns = deadline_ns[0]
            if due_ns and time.monotonic_ns() >= due_ns:
                sys.stderr.write(
                    f"prefect-ft: killed process {pid}: no progress, and it cannot be interrupted\n"
                )
                if grace_ms:
                    rank.send(signal.SIGTERM)
                    rank.ends(grace_ms / 1000)
                rank.send(signal.SIGKILL)
                return


def _sleep_s(due_ns: int) -> float:
    left_s = (due_ns - time.monotonic_ns()) / 1e9 + 0.001
    return max(0.001, min(left_s, _MAX_SLEEP_S)) if due_ns else _MAX_SLEEP_S
