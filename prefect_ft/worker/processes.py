"""Processes: the tree below this one, ending all of it for certain, and signals that reach no other process.

A pid belongs to a process only until it has been reaped; then another process may get it. So a process to be
signalled is held by a pidfd opened while its pid was known to be its own. All signals are sent from here.

A subreaper inherits every orphan below it, including those that moved to a session of their own; so a walk
from here finds every process that a rank ever started. Reads /proc; Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from typing import Callable, Container, Dict, Iterable, List, Optional

_PR_SET_CHILD_SUBREAPER = 36
SPARE_DESCRIPTORS = 3
"""The fewest descriptors that a walk and a kill need; more make it faster."""

_BREATH_S = 0.005
"""Pause before the same processes are killed again, so that retrying does not burn a core."""


class Held:
    """A process held by a pidfd; readable once it has ended. Signals sent here reach no other process."""

    def __init__(self, pid: int) -> None:
        """Raises OSError where the process is gone, or no descriptor is left.

        `pid` must be that of a child not reaped yet. For any other process, check afterwards that it is the
        intended one (`started`, `parent`).
        """
        self.pid = pid
        self._handle: Optional[int] = os.pidfd_open(pid)

    def fileno(self) -> int:
        """Return the pidfd, to wait on."""
        assert self._handle is not None
        return self._handle

    def send(self, *signals: int) -> None:
        """Send signals; do nothing if the process has ended, or is another user's."""
        for number in signals:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self.fileno(), number)

    def ends(self, timeout_s: float) -> bool:
        """Wait for its end, at most `timeout_s`; return whether it came."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(max(0.0, 1000 * timeout_s)))

    def close(self) -> None:
        """Let go of it. Idempotent."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def signal_group(leader: int, *signals: int) -> None:
    """Send signals to the process group of a child not reaped yet: its pid, and so the group's, is still its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        for number in signals:
            os.killpg(leader, number)


def become_subreaper() -> None:
    """Make orphans below this process its own children; raises OSError where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


def descendants(root: int, without: Container[int] = ()) -> List[int]:
    """Return the pids of all processes below `root`, zombies included, parents before children.

    Those in `without` are left out, with whatever is below them.
    """
    children_of = _children if _KERNEL_LISTS_CHILDREN else _children_by_scan()
    found: List[int] = []
    frontier = [root]
    while frontier:
        children = [child for pid in frontier for child in children_of(pid) if child not in without]
        found += children
        frontier = children
    return found


def topmost(roots: Iterable[int], fits: Callable[[int], bool]) -> List[int]:
    """Return the processes at and below `roots` that fit, but none that is below another one of them."""
    children_of = _children if _KERNEL_LISTS_CHILDREN else _children_by_scan()
    found: List[int] = []
    frontier = list(roots)
    while frontier:
        pid = frontier.pop()
        if fits(pid):
            found.append(pid)
        else:
            frontier += children_of(pid)
    return found


def is_below(pid: int, root: int) -> bool:
    """Return whether a process has `root` above it."""
    above = parent(pid)
    while above and above != root:
        above = parent(above)
    return above == root


def children(pid: int) -> List[int]:
    """Return the children of a process, zombies included."""
    return list((_children if _KERNEL_LISTS_CHILDREN else _children_by_scan())(pid))


_KERNEL_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
"""Whether the kernel has CONFIG_PROC_CHILDREN; some sandboxes lack it, and then all of /proc is read."""


def _children_by_scan() -> Callable[[int], List[int]]:
    """Read every process's parent once and return a function from pid to children."""
    children: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            above = parent(int(name))
            if above is not None:
                children.setdefault(above, []).append(int(name))
    return lambda pid: children.get(pid, [])


def parent(pid: int) -> Optional[int]:
    """Return the parent of a process, None if it is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def group(pid: int) -> Optional[int]:
    """Return the process group of a process, by its leader's pid; None if the process is gone."""
    fields = _stat(pid)
    return int(fields[2]) if fields else None


def session(pid: int) -> Optional[int]:
    """Return the session of a process, by its leader's pid; None if the process is gone."""
    fields = _stat(pid)
    return int(fields[3]) if fields else None


def started(pid: int) -> Optional[int]:
    """Return when a living process started, in clock ticks since boot: with its pid, that identifies it for good."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in (b"Z", b"X") else None


def _stat(pid: int) -> List[bytes]:
    """Return the fields of /proc/PID/stat from the state on; none if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return []


def _children(pid: int) -> List[int]:
    """Return the children of all threads of `pid`; of a process that is gone, none."""
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


def reap() -> None:
    """Reap every child that has ended, without blocking; for callers that wait for none of them."""
    with contextlib.suppress(ChildProcessError):
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
            pass


def end_descendants(
    reap: Callable[[], None], timeout_s: float, spared: Callable[[], Container[int]] = frozenset
) -> List[int]:
    """SIGKILL everything below this process until a walk finds no process; return those left after the time.

    Those that are `spared` stay. `reap` must reap whatever has ended, without blocking. A process that
    survives SIGKILL is stuck in the kernel (state D). Needs SPARE_DESCRIPTORS. Idempotent.
    """
    deadline = time.monotonic() + timeout_s
    before: List[int] = []
    while True:
        reap()
        pids = descendants(os.getpid(), spared())
        left_s = deadline - time.monotonic()
        if not pids or left_s <= 0:
            return pids
        if pids == before:
            time.sleep(_BREATH_S)  # dead, but held by a tracer; or none could be waited for
        before = pids
        family = {os.getpid(), *pids}
        kill_and_wait(pids, lambda pid, family=family: parent(pid) in family, left_s)  # type: ignore[misc]


def kill_and_wait(pids: Iterable[int], still_is: Callable[[int], bool], timeout_s: float) -> None:
    """SIGKILL each, in their order, and wait until all have ended (as zombies too), at most `timeout_s`.

    `still_is(pid)` is asked once the process is held by a pidfd: a pid that has been reused since it was
    found is spared. All are held before the first is killed, because its children then get another
    parent.
    """
    deadline = time.monotonic() + timeout_s
    held: Dict[int, Held] = {}
    try:
        for pid in pids:
            process = hold(pid, still_is)
            if process is not None:
                held[process.fileno()] = process
        for process in held.values():
            process.send(signal.SIGKILL)  # the wait shows which have not ended by then
        _wait(held, deadline)
    finally:
        for process in held.values():
            process.close()


def hold(pid: int, still_is: Callable[[int], bool]) -> Optional[Held]:
    """Hold a process; None where it is gone, or its pid was reused: `still_is(pid)` is asked once it is held."""
    try:
        process = Held(pid)
    except OSError:  # gone, or no descriptors left until held ones have ended
        return None
    if still_is(pid):
        return process
    process.close()
    return None


def _wait(held: Dict[int, Held], deadline_s: float) -> None:
    """Wait until all have ended, removing those that have from `held`, which maps pidfds to them."""
    poll = select.poll()
    for process in held.values():
        poll.register(process, select.POLLIN)
    while held and (left_s := deadline_s - time.monotonic()) > 0:
        for handle, _ in poll.poll(max(1.0, 1000 * left_s)):
            poll.unregister(handle)
            held.pop(handle).close()
