"""The agent's door: makes peers of connections, of which those that have not shown the key are strangers."""

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
    """The listening sockets and the peers that came in by them and are strangers yet."""

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
        """Take connections there from now on."""

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
        """Have done with a stranger; a peer that was admitted stays."""
        self._lobby.dismiss(peer)

    def _left(self, peer: Peer) -> None:
        if not self._lobby.release(peer):
            self._on_gone(peer)


def for_users(*uids: int) -> Entrance:
    """Let these users in: in a container the orchestrator is another one than the agent."""
    return lambda connection: connection if _uid_of(connection) in uids else None


def _uid_of(connection: socket.socket) -> int:
    """Return the user as whom the other side runs."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
