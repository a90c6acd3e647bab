"""Opens the logs that `classify` reads: plain, gzip, zstd or by PowerShell, recognised by their first bytes.

Reads in pieces; never holds a whole log.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import IO

from prefect_ft.cli.powershell import unbroken
from prefect_ft.decide.classify import Catalogue, LogFindings, LogScanner
from prefect_ft.errors import ConfigError

__all__ = ["STANDARD_INPUT", "lines_around", "read_log"]

STANDARD_INPUT = "-"
_PIECE_BYTES = 1 << 18
_SHOWN_BYTES = 4000  # of a line that is shown again
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BY_POWERSHELL = {
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
"""The encodings that Windows PowerShell writes, by the marks with which such a file begins."""


def read_log(path: str, catalogue: Catalogue) -> LogFindings:
    """Read and scan a whole log. Raises `ConfigError` if it cannot be read."""
    try:
        with _opened(path) as stream:
            raw = _Rejoined(_beginning(stream), stream)
            scanner = LogScanner(path, catalogue, _recount(path, stream, raw))
            for piece in raw.unpacked():
                scanner.feed(piece)
            return scanner.findings()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=path) from error
    except ValueError as error:
        raise ConfigError("is not a valid path", file=repr(path)) from error


def lines_around(path: str, line: int, most: int) -> list[tuple[int, str]]:
    """Return a line and up to `most` before and after it, with their numbers; none where it cannot be read again."""
    first, last = max(1, line - most), line + most
    found: list[tuple[int, str]] = []
    try:
        if path == STANDARD_INPUT or not stat.S_ISREG(os.stat(path).st_mode):
            return []
        with _opened(path) as stream:
            number, rest = 1, b""
            for piece in _Rejoined(_beginning(stream), stream).unpacked():
                *lines, rest = (rest + piece).split(b"\n")
                begin, end = max(0, first - number), max(0, last + 1 - number)
                found += [(number + at, _shown(lines[at])) for at in range(begin, min(end, len(lines)))]
                number += len(lines)
                rest = rest[:_SHOWN_BYTES]
                if number > last:
                    return found
            if first <= number <= last and rest:
                found.append((number, _shown(rest)))
    except OSError:
        return []
    return found


def _shown(line: bytes) -> str:
    return line[:_SHOWN_BYTES].decode(errors="replace").rstrip("\r")


def _opened(path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    if path == STANDARD_INPUT:
        return contextlib.nullcontext(sys.stdin.buffer)
    return open(path, "rb", buffering=0)


def _beginning(stream: IO[bytes]) -> bytes:
    """Read enough to recognise the format: a pipe may return a single byte at first."""
    first = stream.read(_PIECE_BYTES)
    while 0 < len(first) < len(_ZSTD) and (more := stream.read(_PIECE_BYTES)):
        first += more
    return first


def _recount(path: str, stream: IO[bytes], raw: _Rejoined) -> Callable[[int, int], int] | None:
    """Return a function that counts line ends between two offsets; `None` if the log cannot be read twice.

    It opens the log again, since a verdict may ask for a number when all logs are closed.
    """
    if raw.is_converted or stream is sys.stdin.buffer or not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return None

    def count(start: int, end: int) -> int:
        lines = 0
        try:
            with open(path, "rb", buffering=0) as again:
                again.seek(start)
                while start < end and (piece := again.read(min(_PIECE_BYTES, end - start))):
                    lines += piece.count(b"\n")
                    start += len(piece)
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror or error}", file=path) from error
        return lines

    return count


class _Rejoined:
    """A stream whose first bytes have already been read."""

    def __init__(self, first: bytes, rest: IO[bytes]) -> None:
        self._first, self._rest = first, rest
        self._is_gzip, self._is_zstd = first.startswith(_GZIP), first.startswith(_ZSTD)
        self._encoding = next((each for mark, each in _BY_POWERSHELL.items() if first.startswith(mark)), "")

    @property
    def is_converted(self) -> bool:
        """Whether `unpacked` returns other bytes than the file has."""
        return self._is_gzip or self._is_zstd or bool(self._encoding)

    def read(self, size: int = _PIECE_BYTES) -> bytes:
        if not self._first:
            return self._rest.read(size)
        piece, self._first = self._first[:size], self._first[size:]
        return piece

    def unpacked(self) -> Iterator[bytes]:
        """Return the log in UTF-8 and uncompressed, in pieces."""
        if self._is_gzip:
            return self._gunzipped()
        if self._encoding:
            texts = codecs.iterdecode(iter(self.read, b""), self._encoding, errors="replace")
            return (text.encode(errors="replace") for text in unbroken(texts))
        return self._unzstd() if self._is_zstd else iter(self.read, b"")

    def _gunzipped(self) -> Iterator[bytes]:
        """Unpack gzip; a truncated file is read as far as it goes."""
        unpacker = zlib.decompressobj(wbits=31)
        for packed in iter(self.read, b""):
            piece = packed
            while piece:
                try:
                    yield unpacker.decompress(piece, _PIECE_BYTES)
                except zlib.error as error:
                    raise OSError(f"the gzip data is damaged ({error})") from error
                piece = unpacker.unconsumed_tail
                if unpacker.eof and not unpacker.unused_data:
                    break
                if unpacker.eof and not unpacker.unused_data.startswith(_GZIP):
                    return  # padding
                if unpacker.eof:  # another member follows
                    piece, unpacker = unpacker.unused_data, zlib.decompressobj(wbits=31)

    def _unzstd(self) -> Iterator[bytes]:
        import zstandard  # few logs are compressed

        unpacker = zstandard.ZstdDecompressor().stream_reader(
            self,  # type: ignore[arg-type]  # only read from
            read_across_frames=True,
        )
        try:
            yield from iter(lambda: unpacker.read(_PIECE_BYTES), b"")
        except zstandard.ZstdError as error:
            raise OSError(f"the zstd data is damaged ({error})") from error
