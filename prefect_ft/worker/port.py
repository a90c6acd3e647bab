"""A TCP port kept free for the next rendezvous: bound, so that nothing else gets it, until it is given away.

It is kept at all addresses, since a rank may be the one that listens. Where the agent does, it is at the address by
which the ranks look for it, and at no other.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Optional

_LOCALHOST = "127.0.0.1"


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
        """Let another process bind it. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def hand_over(self, host: str) -> Optional[socket.socket]:
        """Return a socket that is bound to the port at `host`; None where no port is kept. Raises OSError.

        At all addresses where `host` is a name, or an address that this machine does not know as its own: then it is
        others that say where it leads.
        """
        kept, self._socket = self._socket, None
        if kept is None or self.number is None:
            return None
        try:
            own = _bound_at(_LOCALHOST if host == "localhost" else host, self.number, kept)
        except BaseException:
            kept.close()
            raise
        if own is None:
            return kept
        kept.close()
        return own


def _bound_at(host: str, port: int, kept: socket.socket) -> Optional[socket.socket]:
    """Bind a port that `kept` keeps to one address as well; None where that cannot be. Raises OSError."""
    family = next((each for each in (socket.AF_INET, socket.AF_INET6) if _is_address(host, each)), None)
    if family is None:
        return None
    own = socket.socket(family, socket.SOCK_STREAM)
    try:
        for each in (own, kept):  # neither listens, and so both may have it
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind((host, port))
    except OSError as exc:
        own.close()
        if exc.errno != errno.EADDRNOTAVAIL:
            raise
        return None
    return own


def _is_address(host: str, family: int) -> bool:
    try:
        socket.inet_pton(family, host)
    except OSError:
        return False
    return True


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
