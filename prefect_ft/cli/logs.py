"""Opens the logs that `classify` reads: plain, gzip or zstd, told apart by their first bytes.

Owns the reading in pieces; never holds a whole log.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from prefect_ft.errors import ConfigError

if TYPE_CHECKING:
    from prefect_ft.decide.classify import LogScanner

__all__ = ["read_log"]

STANDARD_INPUT = "-"
_PIECE_BYTES = 1 << 18
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def read_log(path: str, scanner: LogScanner) -> None:
    """Feed a whole log to a scanner. Raises `ConfigError` for a file that cannot be read."""
    try:
        with _opened(path) as stream:
            for piece in _pieces(stream):
                scanner.feed(piece)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot be read: {reason}", file=path) from error
    except ValueError as error:
        raise ConfigError("is no path that a file can have", file=repr(path)) from error


def _opened(path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    if path == STANDARD_INPUT:
        return contextlib.nullcontext(sys.stdin.buffer)
    return open(path, "rb", buffering=0)


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    first = stream.read(_PIECE_BYTES)
    while 0 < len(first) < len(_ZSTD) and (more := stream.read(_PIECE_BYTES)):
        first += more
    if first.startswith(_GZIP):
        yield from _gunzipped(_Rejoined(first, stream))
    elif first.startswith(_ZSTD):
        yield from _unzstd(_Rejoined(first, stream))
    else:
        while first:
            yield first
            first = stream.read(_PIECE_BYTES)


class _Rejoined:
    """A stream whose beginning has been read already."""

    def __init__(self, first: bytes, rest: IO[bytes]) -> None:
        self._first, self._rest = first, rest

    def read(self, size: int = -1) -> bytes:
        if not self._first:
            return self._rest.read(size)
        size = len(self._first) if size < 0 else size
        piece, self._first = self._first[:size], self._first[size:]
        return piece


def _gunzipped(stream: _Rejoined) -> Iterator[bytes]:
    """Give what is there of a gzip file; one that breaks off is read as far as it goes."""
    import zlib  # noqa: PLC0415  (few logs are packed)

    unpacker = zlib.decompressobj(wbits=31)
    while piece := stream.read(_PIECE_BYTES):
        while piece:
            try:
                yield unpacker.decompress(piece, _PIECE_BYTES)
            except zlib.error as error:
                raise OSError(f"the gzip data is damaged ({error})") from error
            piece = unpacker.unconsumed_tail
            if unpacker.eof and unpacker.unused_data.startswith(_GZIP):  # another member follows
                piece, unpacker = unpacker.unused_data, zlib.decompressobj(wbits=31)


def _unzstd(stream: _Rejoined) -> Iterator[bytes]:
    import zstandard  # noqa: PLC0415  (few logs are packed)

    try:
        with zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True) as reader:
            while piece := reader.read(_PIECE_BYTES):
                yield piece
    except zstandard.ZstdError as error:
        raise OSError(f"the zstd data is damaged ({error})") from error
