"""What processes do about signals, as /proc/PID/status says."""

from __future__ import annotations

import os
import signal
from typing import List


def ignores(pid: int, number: int) -> bool:
    """Return whether a process ignores a signal; False if it is gone."""
    return bool(_mask("SigIgn", f"/proc/{pid}/status") & _bit(number))


def handles(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal, or blocks it for a thread or descriptor that takes it.

    Such a process does not die of it. False if it is gone. Who blocks all signals means none of them: so do processes
    for a moment while they start another one, and helper threads of libraries.
    """
    bit = _bit(number)
    if _mask("SigCgt", f"/proc/{pid}/status") & bit:
        return True
    threads = [f"/proc/{pid}/task/{thread}" for thread in _threads(pid)]
    blocked = {thread: _mask("SigBlk", f"{thread}/status") for thread in threads}
    is_meant = any(mask & bit and not mask & _NEVER_MEANT for mask in blocked.values())
    return is_meant and all(mask & bit or _is_in_sigwait(thread) for thread, mask in blocked.items())


def _threads(pid: int) -> List[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _is_in_sigwait(thread: str) -> bool:
    """Whether a thread waits for signals; what it waits for is not in its mask meanwhile."""
    try:
        with open(f"{thread}/wchan", "rb", buffering=0) as file:
            return b"sigtimedwait" in file.read(64)  # a compiler may add to the name
    except OSError:
        return False


def _mask(name: str, status: str) -> int:
    """Return a mask of signals of a process or thread; empty if that is gone."""
    head = name.encode() + b":"
    try:
        with open(status, "rb", buffering=0) as file:
            lines = file.read(1 << 16).splitlines()
    except OSError:
        return 0
    words = [line[len(head) :] for line in lines if line.startswith(head)]
    return int(words[0], 16) if words else 0


def _bit(number: int) -> int:
    return 1 << (number - 1)


_NEVER_MEANT = _bit(signal.SIGXFSZ)
"""Nobody blocks this signal alone: where it is blocked, all signals are."""
