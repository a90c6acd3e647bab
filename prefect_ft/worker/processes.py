"""The process tree below this process: who is in it, and ending all of it for certain.

A subreaper inherits every orphan below it, also those that moved to a session of their own; so a walk
from here finds every process that a rank ever started. Reads /proc; Linux only.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from typing import Callable, Dict, Iterable, List

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Make orphans below this process its own children; raises OSError where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


def descendants(root: int) -> List[int]:
    """Give the pids of all processes below `root`, zombies included, parents before children."""
    children_of = _children if _KERNEL_LISTS_CHILDREN else _children_by_scan()
    found: List[int] = []
    frontier = [root]
    while frontier:
        children = [child for pid in frontier for child in children_of(pid)]
        found += children
        frontier = children
    return found


_KERNEL_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
"""Needs CONFIG_PROC_CHILDREN; some sandboxes' kernels lack it, and then all of /proc is read."""


def _children_by_scan() -> Callable[[int], List[int]]:
    """Read every process's parent once and give a function from pid to children."""
    children: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(name))
    return lambda pid: children.get(pid, [])


def _children(pid: int) -> List[int]:
    """Give the children of all threads of `pid`; of a process that is gone, none."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [child for thread in threads for child in _children_of_thread(pid, thread)]


def _children_of_thread(pid: int, thread: str) -> List[int]:
    try:
        with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def end_descendants(reap: Callable[[], None], timeout_s: float) -> List[int]:
    """SIGKILL everything below this process until a walk finds nobody; give who is left after the time.

    `reap` must collect whatever has ended, without blocking. Who survives SIGKILL sits in the kernel
    (state D). Idempotent.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        reap()
        pids = descendants(os.getpid())
        left_s = deadline - time.monotonic()
        if not pids or left_s <= 0:
            return pids
        _kill_and_wait(pids, left_s)


def _kill_and_wait(pids: Iterable[int], timeout_s: float) -> None:
    """SIGKILL each and wait until all have ended (as zombies too), at most `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    poll = select.poll()
    handles = set()
    try:
        for pid in pids:
            handle = _kill(pid)
            if handle is not None:
                handles.add(handle)
                poll.register(handle, select.POLLIN)
        while handles and time.monotonic() < deadline:
            for handle, _ in poll.poll(max(1.0, 1000 * (deadline - time.monotonic()))):
                poll.unregister(handle)
                handles.discard(handle)
                os.close(handle)
    finally:
        for handle in handles:
            os.close(handle)


def _kill(pid: int) -> "int | None":
    """SIGKILL one process and give its pidfd; None if it is gone already."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        os.close(handle)
        return None
    return handle
