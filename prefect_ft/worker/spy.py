"""Stacks of Python processes that do not write any themselves, read from outside by py-spy, where that is installed.

It reads their memory, and neither stops nor signals them, so it works for processes that never sent a heartbeat, are
stopped, or handle the signal themselves. Where the kernel does not allow that, nothing is known.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any, BinaryIO, Dict, List, Optional

from prefect_ft.worker.processes import Held

KILLED_TIMEOUT_S = 5.0
"""How long to wait for the end of a killed one."""

MAX_BYTES = 4 << 20
"""The most output read for one process."""


def command() -> Optional[str]:
    """Return the path of py-spy, in PATH or beside this interpreter; None where it is not installed."""
    places = [*os.environ.get("PATH", os.defpath).split(os.pathsep), os.path.dirname(sys.executable)]
    paths = [os.path.join(place, "py-spy") for place in places if place]
    return next((path for path in paths if os.access(path, os.X_OK) and os.path.isfile(path)), None)


class Look:
    """One look at each of these processes, in turn; `stacks` is what was seen, by pid."""

    def __init__(self, pids: List[int], scratch: str) -> None:
        """`scratch` is where a file may be made; nothing stays there."""
        self.stacks: Dict[str, str] = {}
        self._command = command()
        self._left = [pid for pid in pids if _is_python(pid)] if self._command else []
        self._scratch = scratch
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._held: Optional[Held] = None
        self._output: Optional[BinaryIO] = None
        self._pid = 0

    def advance(self) -> bool:
        """Collect what was seen and inspect the next process; return whether all have been inspected."""
        if self._process is not None:
            if self._held is not None and not self._held.ends(0):
                return False
            self._forget()
            self._take()
        while self._left and self._process is None:
            self._begin(self._left.pop(0))
        return self._process is None

    def _begin(self, pid: int) -> None:
        assert self._command is not None
        with contextlib.suppress(OSError):
            self._output = open(self._scratch, "w+b")  # noqa: SIM115  (it is read when the process has ended)
            os.unlink(self._scratch)
            self._process = subprocess.Popen(
                [self._command, "dump", "--nonblocking", "--full-filenames", "--json", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
            )
            self._pid = pid
            self._held = Held(self._process.pid)

    def _take(self) -> None:
        assert self._output is not None
        self._output.seek(0)
        # It failed, or another version prints it differently: then nothing is known.
        with (
            contextlib.suppress(OSError, ValueError, RecursionError, TypeError, KeyError),
            self._output as output,
        ):
            self.stacks[str(self._pid)] = written(json.loads(output.read(MAX_BYTES)), self._pid)

    def close(self) -> None:
        """Stop looking."""
        if self._held is not None:
            self._held.send(signal.SIGKILL)
            self._held.ends(KILLED_TIMEOUT_S)
        self._forget()

    def _forget(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None
        if self._process is not None:
            self._process.poll()
            self._process.returncode = 0  # the agent reaps it, if this has not
            self._process = None


def written(threads: Any, pid: int) -> str:
    """Write py-spy's threads as faulthandler does, the main one as the one that was asked."""
    lines: List[str] = []
    for thread in threads:
        is_main = thread["os_thread_id"] == pid or thread["thread_name"] == "MainThread"
        head = "Current thread" if is_main else "Thread"
        lines.append(f"{head} 0x{thread['thread_id']:016x} (most recent call first):")
        lines += [
            f'  File "{frame["filename"]}", line {frame["line"]} in {frame["name"].rpartition(".")[2]}'
            for frame in thread["frames"]
        ]
        lines.append("")
    return "\n".join(lines)


def _is_python(pid: int) -> bool:
    try:
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False
