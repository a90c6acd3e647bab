"""The agent's door: takes connections, and keeps those who have not shown the key few, short and quiet."""

from __future__ import annotations

import functools
import socket
import struct
from typing import Any, Callable, Dict, Optional

from prefect_ft.worker.loop import Loop, now_s
from prefect_ft.worker.peer import Peer

MAX_STRANGERS = 16
"""Connections that have not attached; one more, and the oldest has to go."""

STRANGER_TIMEOUT_S = 10.0
"""How long a connection may take to attach."""

RETRY_S = 1.0
"""How long the door stays shut when no connection can be taken (no descriptors left)."""

Entrance = Callable[[socket.socket], Optional[socket.socket]]
"""Gives, for a connection that has come in, the one to speak by; None: who came may not stay."""


class Door:
    """The listening sockets and the peers that came in by them and are strangers yet."""

    def __init__(
        self,
        loop: Loop,
        on_message: Callable[[Peer, Dict[str, Any]], None],
        on_gone: Callable[[Peer], None],
        on_room: Callable[[], None],
    ) -> None:
        """The calls are those of `Peer`; of a stranger that goes, nobody is told."""
        self._loop = loop
        self._on_message = on_message
        self._on_gone = on_gone
        self._on_room = on_room
        self._entrances: Dict[socket.socket, Entrance] = {}
        self._strangers: Dict[Peer, float] = {}

    def open(self, listener: socket.socket, entrance: Entrance) -> None:
        """Take connections there from now on."""
        listener.setblocking(False)
        self._entrances[listener] = entrance
        self._listen()

    def _listen(self) -> None:
        for listener in self._entrances:
            self._loop.watch(listener, functools.partial(self._accept, listener))

    def _shut(self) -> None:
        for listener in self._entrances:
            self._loop.forget(listener)

    def admit(self, peer: Peer) -> None:
        """Let a peer stay: it has shown the key."""
        self._strangers.pop(peer, None)
        peer.trust()

    def dismiss(self, peer: Peer) -> None:
        """Have done with a stranger; a peer that was admitted stays."""
        if self._strangers.pop(peer, None) is not None:
            peer.close()

    def _accept(self, listener: socket.socket, _: int) -> None:
        try:
            came, _address = listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # whoever it was has gone again
        except OSError:
            self._shut()
            self._loop.after("door", RETRY_S, self._listen)
            return
        connection = self._entrances[listener](came)
        if connection is None:
            came.close()
            return
        if len(self._strangers) >= MAX_STRANGERS:
            self.dismiss(next(iter(self._strangers)))
        peer = Peer(connection, self._loop, self._on_message, self._left, self._on_room)
        self._strangers[peer] = now_s() + STRANGER_TIMEOUT_S
        self._loop.after("strangers", STRANGER_TIMEOUT_S, self._dismiss_silent)

    def _left(self, peer: Peer) -> None:
        if self._strangers.pop(peer, None) is None:
            self._on_gone(peer)

    def _dismiss_silent(self) -> None:
        now = now_s()
        for peer, deadline in list(self._strangers.items()):
            if deadline <= now:
                self.dismiss(peer)
        if self._strangers:
            self._loop.after("strangers", min(self._strangers.values()) - now, self._dismiss_silent)


def for_users(*uids: int) -> Entrance:
    """Let these users in: in a container the orchestrator is another one than the agent."""
    return lambda connection: connection if _uid_of(connection) in uids else None


def _uid_of(connection: socket.socket) -> int:
    """Give the user as whom the other side runs."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
