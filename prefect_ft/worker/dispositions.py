"""What processes do about signals, as /proc/PID/status says."""

from __future__ import annotations

import os
from typing import List


def ignores(pid: int, number: int) -> bool:
    """Return whether a process ignores a signal; False if it is gone."""
    return _is_in("SigIgn", f"/proc/{pid}/status", number)


def handles(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal, or blocks it for a thread or descriptor that takes it.

    Such a process does not die of it. False if it is gone.
    """
    if _is_in("SigCgt", f"/proc/{pid}/status", number):
        return True
    threads = [f"/proc/{pid}/task/{thread}" for thread in _threads(pid)]
    blocking = [thread for thread in threads if _is_in("SigBlk", f"{thread}/status", number)]
    return bool(blocking) and all(_is_in_sigwait(thread) for thread in threads if thread not in blocking)


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


def _is_in(mask: str, status: str, number: int) -> bool:
    """Whether a signal is in a mask of a process or thread; False if that is gone."""
    head = mask.encode() + b":"
    try:
        with open(status, "rb", buffering=0) as file:
            lines = file.read(1 << 16).splitlines()
    except OSError:
        return False
    words = [line[len(head) :] for line in lines if line.startswith(head)]
    return bool(words) and bool(int(words[0], 16) >> (number - 1) & 1)
