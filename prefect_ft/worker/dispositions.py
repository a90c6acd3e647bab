"""What processes do about signals, as /proc/PID/status says."""

from __future__ import annotations


def ignores(pid: int, number: int) -> bool:
    """Return whether a process ignores a signal; False if it is gone."""
    return _is_in("SigIgn", f"/proc/{pid}/status", number)


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
