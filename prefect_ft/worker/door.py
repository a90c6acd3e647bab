"""The agent's door: turns connections into peers; until they have shown the key, they are strangers."""

from __future__ import annotations

import socket
import struct
from typing import Any, Callable, Dict, Optional

from prefect_ft.worker.lobby import Lobby
from prefect_ft.worker.loop import Loop
from prefect_ft.worker.peer import Peer

Entrance = Callable[[socket.socket], Optional[socket.socket]]
"""Returns the connection to use for an accepted one; None: it is refused."""


class Door:
    """The listening sockets and the peers that they accepted and that are still strangers."""

    def __init__(
        self,
        loop: Loop,
        on_message: Callable[[Peer, Dict[str, Any]], None],
        on_gone: Callable[[Peer], None],
        on_room: Callable[[], None],
    ) -> None:
        """The calls are those of `Peer`; the end of an unauthenticated connection is not reported."""
        self._loop = loop
        self._on_message = on_message
        self._on_gone = on_gone
        self._on_room = on_room
        self._lobby: Lobby[Peer] = Lobby(loop, "door")

    def open(self, listener: socket.socket, entrance: Entrance) -> None:
        """Accept connections there from now on."""

        def enter(came: socket.socket) -> Optional[Peer]:
            connection = entrance(came)
            if connection is None:
                return None
            return Peer(connection, self._loop, self._on_message, self._left, self._on_room)

        self._lobby.open(listener, enter)

    def admit(self, peer: Peer) -> None:
        """Let a peer stay: it has shown the key."""
        self._lobby.release(peer)
        peer.trust()

    def dismiss(self, peer: Peer) -> None:
        """Hang up on a stranger; an admitted peer stays."""
        self._lobby.dismiss(peer)

    def _left(self, peer: Peer) -> None:
        if not self._lobby.release(peer):
            self._on_gone(peer)


def for_users(*uids: int) -> Entrance:
    """Admit these users: in a container, orchestrator and agent run as different ones."""
    return lambda connection: connection if _uid_of(connection) in uids else None


def _uid_of(connection: socket.socket) -> int:
    """Return the user that the other side runs as."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
