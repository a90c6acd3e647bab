"""A TCP port kept free for the next rendezvous: bound, so that nobody gets it, until it is given away."""

from __future__ import annotations

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
        self.number = None
        try:
            reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        except OSError:
            return  # no descriptors left; who needs the port sees that there is none
        try:
            reserved.bind(("", 0))
        except OSError:
            reserved.close()
            return
        self._socket, self.number = reserved, int(reserved.getsockname()[1])

    def give_away(self) -> None:
        """Let somebody else bind it now. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
