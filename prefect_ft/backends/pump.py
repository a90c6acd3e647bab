"""Relays bytes between a stream to a remote process and a local socket, for agents that no file reaches.

How a stream frames its bytes is up to its `Wrapping`.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from prefect_ft.worker import descriptors

MAX_WAITING = 1 << 20
"""Bytes that are buffered for a side that does not read."""

_WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


class Wrapping(Protocol):
    """How a stream frames a process's input and output."""

    @property
    def has_ended(self) -> bool:
        """Whether the last frame was the end of the stream."""

    def unwrapped(self, received: bytearray) -> bytes:
        """Take complete frames out of the received bytes, and return their output."""

    def wrapped(self, data: bytes) -> bytes:
        """Return what to send for this input; without any, control frames that are due."""


class Pump:
    """Relays bytes until one side ends."""

    def __init__(self, stream: socket.socket, ours: socket.socket, wrapping: Wrapping) -> None:
        self._stream, self._ours, self._wrapping = stream, ours, wrapping
        self._received, self._to_us, self._to_stream = bytearray(), bytearray(), bytearray()
        for side in (stream, ours):
            side.setblocking(False)

    @classmethod
    def start(
        cls,
        stream: socket.socket,
        wrapping: Wrapping,
        *,
        held: Sequence[Any] = (),
        is_cut: Callable[[], bool] = lambda: False,
        look_s: float | None = None,
    ) -> socket.socket:
        """Relay in a thread; return our end. `held` is kept open for the stream, and closed when it ends.

        `is_cut` is called every `look_s` seconds: it returns whether the peer is lost without having said so.
        """
        ours, theirs = socket.socketpair()
        pump = cls(stream, theirs, wrapping)
        threading.Thread(
            target=pump._run, args=(held, is_cut, look_s), name="prefect-ft-relay", daemon=True
        ).start()
        return descriptors.moved(ours)

    def _run(self, held: Sequence[Any], is_cut: Callable[[], bool], look_s: float | None) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                look_at = time.monotonic() + (look_s or 0)
                while self._is_open():
                    self._wait(selector, look_s)
                    if look_s is not None and time.monotonic() >= look_at:
                        look_at = time.monotonic() + look_s
                        if is_cut():
                            return
            self._ours.setblocking(True)  # the reader may be slower than the stream was
            self._ours.sendall(self._to_us)
        except OSError:
            pass  # one side is gone: the other is closed below
        finally:
            self._ours.close()
            self._stream.close()
            for each in held:
                each.close()

    def _wait(self, selector: selectors.BaseSelector, timeout_s: float | None) -> None:
        for side, out, to_other in (
            (self._stream, self._to_stream, self._to_us),
            (self._ours, self._to_us, self._to_stream),
        ):
            wanted = selectors.EVENT_READ if len(to_other) < MAX_WAITING else 0
            wanted |= selectors.EVENT_WRITE if out else 0
            _watch(selector, side, wanted)
        selector.select(timeout_s)

    def _is_open(self) -> bool:
        """Move what can be moved; False: a side has ended, and everything that it sent was received."""
        theirs = _received(self._stream) if len(self._to_us) < MAX_WAITING else b""
        mine = _received(self._ours) if len(self._to_stream) < MAX_WAITING else b""
        self._received += theirs or b""
        self._to_us += self._wrapping.unwrapped(self._received)
        self._to_stream += self._wrapping.wrapped(mine or b"")
        _send(self._ours, self._to_us)
        _send(self._stream, self._to_stream)
        return theirs is not None and mine is not None and not self._wrapping.has_ended


def _watch(selector: selectors.BaseSelector, side: socket.socket, wanted: int) -> None:
    is_known = side in selector.get_map()
    if wanted and is_known:
        selector.modify(side, wanted)
    elif wanted:
        selector.register(side, wanted)
    elif is_known:
        selector.unregister(side)


def _received(side: socket.socket) -> bytes | None:
    """Return everything received, also what TLS has read ahead; None: the side has ended, and nothing is left."""
    data = bytearray()
    while len(data) < MAX_WAITING:
        try:
            piece = side.recv(1 << 16)
        except _WAITS:
            return bytes(data)
        if not piece:
            return bytes(data) or None
        data += piece
    return bytes(data)


def _send(side: socket.socket, waiting: bytearray) -> None:
    while waiting:
        try:
            sent = side.send(waiting[: 1 << 16])
        except _WAITS:
            return
        del waiting[:sent]
