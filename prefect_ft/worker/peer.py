"""One connection to the agent: frames in, frames out, never blocking."""

from __future__ import annotations

import select
import selectors
import socket
import time
from typing import Any, Callable, Dict

from prefect_ft.worker import frames

CONGESTED = 4 << 20
"""Bytes waiting to be sent above which output stays in its file."""


class Peer:
    """`on_message(peer, message)` for each frame, `on_gone(peer)` once when the other side has gone."""

    def __init__(
        self,
        connection: socket.socket,
        selector: selectors.BaseSelector,
        on_message: "Callable[[Peer, Dict[str, Any]], None]",
        on_gone: "Callable[[Peer], None]",
    ) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._selector = selector
        self._on_message = on_message
        self._on_gone = on_gone
        self._reader = frames.FrameReader()
        self._out = bytearray()
        self._open = True

    def start(self) -> None:
        """Begin to listen."""
        self._selector.register(self._connection, selectors.EVENT_READ, self._ready)

    @property
    def congested(self) -> bool:
        return len(self._out) > CONGESTED

    def send(self, message: Dict[str, Any]) -> None:
        """Send now what the socket takes, and the rest when it can."""
        if not self._open:
            return
        self._out += frames.encode(message)
        self._write()

    def flush(self, timeout_s: float) -> None:
        """Wait, at most so long, until everything is sent."""
        deadline = time.monotonic() + timeout_s
        while self._open and self._out and time.monotonic() < deadline:
            select.select([], [self._connection], [], deadline - time.monotonic())
            self._write()

    def close(self) -> None:
        """Drop the connection. Idempotent."""
        if self._open:
            self._open = False
            self._selector.unregister(self._connection)
            self._connection.close()

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._write()
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
        except (frames.FrameError, KeyError, TypeError, ValueError):
            self._lost()  # a peer that breaks the protocol is no peer

    def _write(self) -> None:
        try:
            while self._out:
                sent = self._connection.send(self._out)
                del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._lost()
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        self._selector.modify(self._connection, events, self._ready)

    def _lost(self) -> None:
        if self._open:
            self.close()
            self._on_gone(self)
