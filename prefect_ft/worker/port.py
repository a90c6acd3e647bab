"""A TCP port kept free for the next rendezvous: bound, so that nobody gets it, until it is given away."""

from __future__ import annotations

import contextlib
import socket
from typing import Optional


class ReservedPort:
    """`number` is the port that is kept, or was given away last; None where none could be had."""

    def __init__(self) -> None:
        self.number: Optional[int] = None
        self._socket: Optional[socket.socket] = None
        self.keep()

    def keep(self) -> None:
        """Keep a port, another one than was given away. Idempotent."""
        if self._socket is not None:
            return
        self._socket = _bound()
        self.number = None if self._socket is None else int(self._socket.getsockname()[1])

    def give_away(self) -> None:
        """Let somebody else bind it now. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def hand_over(self) -> Optional[socket.socket]:
        """Give the bound socket itself to who serves on it; None where there is none."""
        bound, self._socket = self._socket, None
        return bound


def _bound() -> Optional[socket.socket]:
    """Bind a free port of all addresses, of both kinds where the machine has both."""
    for family in (socket.AF_INET6, socket.AF_INET):
        with contextlib.suppress(OSError):  # no such addresses here; or no descriptors left
            reserved = socket.socket(family, socket.SOCK_STREAM)
            try:
                if family == socket.AF_INET6:
                    reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                reserved.bind(("", 0))
            except OSError:
                reserved.close()
                raise
            return reserved
    return None
