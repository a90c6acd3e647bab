"""One connection to the agent: frames in, frames out, never blocking."""

from __future__ import annotations

import select
import selectors
import socket
import time
from typing import Any, Callable, Dict

from prefect_ft.worker import frames
from prefect_ft.worker.loop import Loop

CONGESTED = 512 << 10
"""Bytes waiting to be sent above which output stays in its file, so that other events do not queue behind it."""

ROOM = 128 << 10
"""Bytes waiting to be sent below which there is room for output again."""

MAX_BACKLOG = 64 << 20
"""Bytes waiting to be sent above which the other side counts as gone."""

STRANGER_MAX_FRAME = 64 << 10
"""The longest frame in bytes before the peer has shown the key."""


class Peer:
    """One connection. `on_message(peer, message)` for each frame, the other calls as the listeners say."""

    def __init__(
        self,
        connection: socket.socket,
        loop: Loop,
        on_message: "Callable[[Peer, Dict[str, Any]], None]",
        on_gone: "Callable[[Peer], None]",
        on_room: Callable[[], None],
    ) -> None:
        """`on_gone(peer)`: once, when the other side has gone; `on_room()`: a congestion is over."""
        connection.setblocking(False)
        self._connection = connection
        self._loop = loop
        self._on_message = on_message
        self._on_gone = on_gone
        self._on_room = on_room
        self._reader = frames.FrameReader(limit=STRANGER_MAX_FRAME)
        self._out = bytearray()
        self._waits_for_room = False
        self._open = True
        loop.watch(connection, self._ready)

    @property
    def congested(self) -> bool:
        """Whether the other side reads more slowly than messages come; a call of `on_room` follows."""
        return len(self._out) > CONGESTED

    def fileno(self) -> int:
        """Return the connection's descriptor."""
        return self._connection.fileno()

    def trust(self) -> None:
        """Accept long frames from now on."""
        self._reader.limit = frames.MAX_FRAME

    def send(self, message: Dict[str, Any]) -> None:
        """Send now what the socket takes, and the rest when it can."""
        self.send_bytes(frames.encode(message))

    def send_bytes(self, data: bytes) -> None:
        """Send encoded data, for callers that send the same to many; otherwise as `send`."""
        if not self._open:
            return
        idle = not self._out
        self._out += data
        if idle:
            self._write()
        elif len(self._out) > MAX_BACKLOG:
            self._lost()

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is sent, or the time is over. Blocks: only for an agent that is leaving."""
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        while self._open and self._out and time.monotonic() < deadline:
            poll.register(self._connection, select.POLLOUT)
            poll.poll(max(1.0, 1000 * (deadline - time.monotonic())))
            self._write()

    def close(self) -> None:
        """Drop the connection without a report. Idempotent."""
        if self._open:
            self._open = False
            self._loop.forget(self._connection)
            self._connection.close()

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            before = len(self._out)
            self._write()
            if self._open and len(self._out) <= ROOM < before:
                self._on_room()
        if events & selectors.EVENT_READ and self._open:
            self._read()

    def _read(self) -> None:
        try:
            data = self._connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        try:
            for message in self._reader.feed(data):
                self._on_message(self, message)
                if not self._open:
                    return
        except frames.FrameError:
            self._lost()  # a peer that breaks the protocol is dropped

    def _write(self) -> None:
        try:
            while self._out:
                sent = self._connection.send(self._out)
                del self._out[:sent]
        except BlockingIOError:
            self._wait_for_room(True)
        except OSError:
            self._lost()
        else:
            self._wait_for_room(False)

    def _wait_for_room(self, waits: bool) -> None:
        if waits != self._waits_for_room:
            self._waits_for_room = waits
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if waits else 0)
            self._loop.watch(self._connection, self._ready, events)

    def _lost(self) -> None:
        if self._open:
            self.close()
            self._on_gone(self)
