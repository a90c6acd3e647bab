"""Ports for servers that are started later: out of the range from which connections get theirs meanwhile."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

RANGE = range(15000, 30000)
"""Below what Linux gives to connections, and below Kubernetes's node ports."""


def free_port(count: int = 1) -> int:
    """Find a port of 127.0.0.1 that is free, and so are the next ones up to `count`."""
    while True:
        port = random.choice(RANGE)
        try:
            with ExitStack() as taken:
                for each in range(port, port + count):
                    taken.enter_context(socket.create_server(("127.0.0.1", each)))
        except OSError:
            continue
        return port
