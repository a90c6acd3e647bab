"""Shuts down gloo's connections: `destroy_process_group` alone takes 10 ms for each of them, one after the other.

Gloo closes a connection and waits for its event loop, which sleeps 10 ms when nothing happens.
The loop itself closes a connection that has been shut down, at once and in all ranks, including those that
wait for it in a collective. Owns the search for these connections; not finding one only costs time.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import stat
import time
from typing import Iterator, Tuple

_LOOP_THREAD = "gloo_tcp_loop"
_EPOLL_WAITS = {"x86_64": (232, 281, 441), "aarch64": (22, 441)}
"""The numbers of epoll_wait, epoll_pwait and epoll_pwait2."""

_LOOK_AGAIN_S = 0.0005
_MAX_LOOKS = 20


def hang_up() -> int:
    """Shut down the connections of all process groups; return how many there were. Ends no process group."""
    number = 0
    for epoll in _loops():
        for descriptor, inode in _watched(epoll):
            number += _shut_down(descriptor, inode)
    return number


def _loops() -> Iterator[int]:
    """Return the epoll descriptors that gloo's threads wait for."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError, ValueError):
            if _read(f"/proc/self/task/{thread}/comm").strip() == _LOOP_THREAD:
                yield _epoll_of(thread)


def _epoll_of(thread: str) -> int:
    """Return what a thread waits for; raises OSError, ValueError where that cannot be determined."""
    waits = _EPOLL_WAITS.get(platform.machine(), ())
    for _ in range(_MAX_LOOKS):
        call, *arguments = _read(f"/proc/self/task/{thread}/syscall").split()
        if call.isdigit() and int(call) in waits:
            return int(arguments[0], 16)
        time.sleep(_LOOK_AGAIN_S)  # it is handling an event
    raise ValueError(thread)


def _watched(epoll: int) -> Iterator[Tuple[int, int]]:
    """Return the descriptors that an epoll descriptor watches, each with its inode."""
    with contextlib.suppress(OSError):
        for line in _read(f"/proc/self/fdinfo/{epoll}").splitlines():
            if line.startswith("tfd:"):
                words = line.split()
                inodes = [int(word[4:], 16) for word in words if word.startswith("ino:")]
                yield int(words[1]), inodes[0] if inodes else 0


def _shut_down(descriptor: int, inode: int) -> bool:
    """Shut a connection down, but not a listener: gloo ends the process when that fails."""
    with contextlib.suppress(OSError):
        copy = os.dup(descriptor)  # from here on it is the same one, even if it is closed elsewhere meanwhile
        try:
            found = os.fstat(copy)
            return found.st_ino == inode and stat.S_ISSOCK(found.st_mode) and _end(copy)
        finally:
            os.close(copy)
    return False


def _end(descriptor: int) -> bool:
    connection = socket.socket(fileno=descriptor)
    try:
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        connection.shutdown(socket.SHUT_RDWR)
        return True
    finally:
        connection.detach()


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()
