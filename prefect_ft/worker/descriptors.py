"""Room for connections: their descriptors get numbers from the soft limit on, up to the hard one.

The soft limit itself stays: ranks and commands inherit it, and this process's other descriptors keep the numbers
below to themselves. A program that uses select() breaks where its soft limit is raised for it, so each program
must raise its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import resource
import socket
import threading
from typing import Iterator

_one_at_a_time = threading.Lock()


def accept(listener: socket.socket) -> "tuple[socket.socket, str]":
    """Return the next connection and the address of its other side, without its port; raises OSError."""
    with _up_to_the_hard_limit() as first:
        connection, address = listener.accept()
        host = address[0] if isinstance(address, tuple) else ""
        return _moved(connection, first), host


def moved(connection: socket.socket) -> socket.socket:
    """Return the same connection with a number from the soft limit on, where there is room."""
    with _up_to_the_hard_limit() as first:
        return _moved(connection, first)


@contextlib.contextmanager
def _up_to_the_hard_limit() -> Iterator[int]:
    """Allow descriptors up to the hard limit while entered; yield the soft one."""
    with _one_at_a_time:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(
            OSError
        ):  # the hard limit is above what the kernel allows by now (fs.nr_open)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            yield soft
        finally:
            with contextlib.suppress(OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _moved(connection: socket.socket, first: int) -> socket.socket:
    try:
        number = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, first)
    except OSError:  # the limits are equal, or all numbers above are taken
        return connection
    with connection:
        same = socket.socket(fileno=number)
        same.settimeout(connection.gettimeout())
        return same
