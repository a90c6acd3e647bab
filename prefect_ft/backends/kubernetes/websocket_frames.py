"""The WebSocket frames (RFC 6455) in which the Kubernetes API carries a process's input and output.

The first byte of each message is its channel.
"""

from __future__ import annotations

import os
import struct

STDIN, STDOUT, STATUS = 0, 1, 3
"""Channels; the last carries the process's exit status."""

_CONTINUED, _BINARY, _TEXT, _CLOSE, _PING, _PONG = 0x0, 0x2, 0x1, 0x8, 0x9, 0xA
_LAST = _MASKED = 0x80


class ProcessFrames:
    """One connection, on the client's side: output is read from frames, input wrapped in them."""

    def __init__(self) -> None:
        self.has_ended = False
        self.status = b""
        """The API's status of the process's end, as JSON; empty: none yet."""
        self._channel: int | None = None
        self._pongs = bytearray()

    def unwrapped(self, received: bytearray) -> bytes:
        """Take complete frames out of the received bytes, and return the output in them."""
        output = bytearray()
        while not self.has_ended and (frame := _take_frame(received)) is not None:
            opcode, payload = frame
            if opcode == _PING:
                self._pongs += _frame(_PONG, payload)
            elif opcode == _CLOSE:
                self.has_ended = True
            elif opcode in (_BINARY, _TEXT):
                self._channel = payload[0] if payload else None
                output += self._output_of(payload[1:])
            elif opcode == _CONTINUED:
                output += self._output_of(payload)
        return bytes(output)

    def _output_of(self, data: bytes) -> bytes:
        if self._channel == STATUS and data:
            self.has_ended, self.status = True, data
        return data if self._channel == STDOUT else b""

    def wrapped(self, data: bytes) -> bytes:
        """Return the frame for this input, after the pongs that are due."""
        owed, self._pongs = bytes(self._pongs), bytearray()
        return owed + (_frame(_BINARY, bytes([STDIN]) + data) if data else b"")


def _take_frame(received: bytearray) -> tuple[int, bytes] | None:
    """Take the first frame, which a server does not mask; None: it is not complete yet."""
    if len(received) < 2:
        return None
    length, start = received[1], 2
    if length >= 126:
        form = ">H" if length == 126 else ">Q"
        start += struct.calcsize(form)
        if len(received) < start:
            return None
        (length,) = struct.unpack_from(form, received, 2)
    if len(received) < start + length:
        return None
    opcode, payload = received[0] & 0x0F, bytes(received[start : start + length])
    del received[: start + length]
    return opcode, payload


def _frame(opcode: int, payload: bytes) -> bytes:
    """Return a frame, masked as clients must."""
    length = len(payload)
    if length < 126:
        head = struct.pack(">BB", _LAST | opcode, _MASKED | length)
    elif length < 1 << 16:
        head = struct.pack(">BBH", _LAST | opcode, _MASKED | 126, length)
    else:
        head = struct.pack(">BBQ", _LAST | opcode, _MASKED | 127, length)
    mask = os.urandom(4)
    repeated = (mask * (length // 4 + 1))[:length]
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")
    return head + mask + masked.to_bytes(length, "big")
