"""The wire between agents and the orchestrator: length-prefixed JSON, protocol version 1.

A frame is a 4-byte big-endian length and that many bytes of JSON, always one object. Bytes that are not
UTF-8 are sent as lone surrogates (`surrogateescape`), so output arrives byte for byte.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Dict, Iterator

VERSION = 1
MAX_FRAME = 16 << 20
"""Bytes; a longer frame is a broken peer, not a message."""

_LENGTH = struct.Struct(">I")


class FrameError(Exception):
    """Received or outgoing data is not a frame of this protocol; once received, the stream is unusable."""


def encode(message: Dict[str, Any]) -> bytes:
    """Return the frame that carries `message`; raises FrameError if it is too long."""
    return framed(_encoder.encode(message).encode("ascii"))


def framed(body: bytes) -> bytes:
    """Return the frame that carries `body`, an object in JSON; raises as `encode`."""
    if len(body) > MAX_FRAME:
        raise FrameError(f"a frame of {len(body)} bytes (at most {MAX_FRAME} are allowed)")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Assembles frames from the pieces that a stream delivers. `limit` is the longest, in bytes."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Dict[str, Any]]:
        """Return the messages that `data` completes; raises FrameError on anything else."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self.limit:
                raise FrameError(f"a frame of {length} bytes (at most {self.limit} are allowed)")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = self._buffer[_LENGTH.size : end]
            del self._buffer[:end]
            yield _decode(body)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


# Made once, and called without a search for white space: in a process that has slept, that takes most of the time.
_encoder = json.JSONEncoder(separators=(",", ":"))
_decoder = json.JSONDecoder(parse_constant=_no_number)


def _decode(body: bytearray) -> Dict[str, Any]:
    try:
        text = body.decode("utf-8")
        message, end = _decoder.raw_decode(text)
        if end < len(text):
            raise ValueError(f"something follows at {end}")
    except (ValueError, RecursionError) as exc:
        raise FrameError(f"a frame that is not JSON: {exc}") from exc
    if not isinstance(message, dict):
        raise FrameError(f"a frame that is not an object: {type(message).__name__}")
    return message
