"""Sends a signal to those of a rank's processes that handle it, and to none that would die of it."""

from __future__ import annotations

import os
from typing import List

from prefect_ft.worker import processes
from prefect_ft.worker.dispositions import handles


def send_to_handlers(leader: int, number: int) -> bool:
    """Send a signal to the topmost processes of a rank that handle it; return whether there are any.

    `leader` is the pid of its first process, which may be a shell or a launcher, and leads a session. What a trainer
    has forked handles what the trainer handles, but the trainer is who was meant.
    """
    found = processes.topmost(_roots(leader), lambda pid: handles(pid, number))
    for pid in found:
        held = processes.hold(pid, lambda pid: processes.is_below(pid, os.getpid()) and handles(pid, number))
        if held is not None:
            held.send(number)
            held.close()
    return bool(found)


def _roots(leader: int) -> List[int]:
    """Return the children of this process that belong to the rank: its first process, and orphans of its session."""
    return [pid for pid in processes.children(os.getpid()) if processes.session(pid) == leader]
