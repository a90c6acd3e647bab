"""The agent's door: takes connections, and keeps those who have not shown the key few, short and quiet."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any, Callable, Dict

from prefect_ft.worker.loop import Loop, now_s
from prefect_ft.worker.peer import Peer

MAX_STRANGERS = 16
"""Connections that have not attached; one more, and the oldest has to go."""

STRANGER_TIMEOUT_S = 10.0
"""How long a connection may take to attach."""

RETRY_S = 1.0
"""How long the door stays shut when no connection can be taken (no descriptors left)."""


class Door:
    """The listening socket and the peers that came in by it and are strangers yet."""

    def __init__(
        self,
        listener: socket.socket,
        loop: Loop,
        on_message: Callable[[Peer, Dict[str, Any]], None],
        on_gone: Callable[[Peer], None],
        on_room: Callable[[], None],
    ) -> None:
        """The calls are those of `Peer`; of a stranger that goes, nobody is told."""
        listener.setblocking(False)
        self._listener = listener
        self._loop = loop
        self._on_message = on_message
        self._on_gone = on_gone
        self._on_room = on_room
        self._strangers: Dict[Peer, float] = {}
        self.uids = {os.getuid(), 0}
        """Whose connections are taken: in a container the orchestrator is another user than the agent."""
        self.open()

    def open(self) -> None:
        """Take connections from now on."""
        self._loop.watch(self._listener, lambda _: self._accept())

    def admit(self, peer: Peer) -> None:
        """Let a peer stay: it has shown the key."""
        self._strangers.pop(peer, None)
        peer.trust()

    def dismiss(self, peer: Peer) -> None:
        """Have done with a stranger; a peer that was admitted stays."""
        if self._strangers.pop(peer, None) is not None:
            peer.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # whoever it was has gone again
        except OSError:
            self._loop.forget(self._listener)
            self._loop.after("door", RETRY_S, self.open)
            return
        if _uid_of(connection) not in self.uids:
            connection.close()
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


def _uid_of(connection: socket.socket) -> int:
    """Give the user as whom the other side runs."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
