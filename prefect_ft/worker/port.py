"""A TCP port reserved for the next rendezvous: bound, so that nothing else gets it, until it is released.

It is reserved at all addresses, since a rank may be the one that listens. An agent listens only at the address
at which the ranks expect it.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Optional

_LOCALHOST = "127.0.0.1"


class ReservedPort:
    """`number` is the reserved port, or the last released one; None where there was none."""

    def __init__(self) -> None:
        self.number: Optional[int] = None
        self._socket: Optional[socket.socket] = None
        self.keep()

    def keep(self) -> None:
        """Reserve a port other than the last released one. Idempotent."""
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
        """Return a socket that is bound to the port at `host`; None where no port is reserved. Raises OSError.

        It is bound at all addresses where `host` is a name, or not an address of this machine: it may lead here
        all the same.
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
    """Bind a port reserved by `kept` to one address as well; None where that is impossible. Raises OSError."""
    family = next((each for each in (socket.AF_INET, socket.AF_INET6) if _is_address(host, each)), None)
    if family is None:
        return None
    own = socket.socket(family, socket.SOCK_STREAM)
    try:
        for each in (own, kept):  # neither listens, so both may have it
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
        with contextlib.suppress(OSError):  # no such addresses here, or no descriptors left
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
