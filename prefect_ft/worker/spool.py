"""A rank's output: the file that the rank writes, read in whole lines, bounded without losing its place.

The rank holds the file open for appending, so that it goes on printing whoever dies. Offsets count from
the first byte that the rank ever wrote and stay valid for good: what must go is punched out of the file
(fallocate), never shifted; and where a script empties the file (`echo ... > /dev/stderr` does), counting
goes on.
"""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple, Optional

MAX_PIECE = 256 << 10
"""Bytes; a line that is longer is handed on in pieces of this size."""

_TAIL = 64
"""Bytes before the position that must still be there: else the file was emptied and has grown again."""

_KEEP_SIZE = 1
_PUNCH_HOLE = 2
_BLOCK = 4096


class Piece(NamedTuple):
    """What a rank printed from `offset` on."""

    offset: int
    data: bytes


class Spool:
    """One output file. `position` is the offset up to which it has been handed on."""

    def __init__(self, path: str, limit_bytes: int) -> None:
        """`limit_bytes` is what stays on disk at most, handed on or not."""
        self.path = path
        self.position = 0
        self.dropped = 0
        """Bytes that the reader will never get, because they were punched out before."""
        self._limit = limit_bytes
        self._base = 0
        """The offset of the file's first byte: above 0 once a script has emptied the file."""
        self._first = 0
        """The offset of the first byte that is still there."""
        self._tail = b""
        """What was handed on last, up to the position; empty after a jump."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def rewind(self, position: int) -> None:
        """Hand everything from `position` on again, to a reader who has only what is before it."""
        end = self._end()
        self.dropped = max(0, self._first - position)
        self._jump(min(max(position, self._first), end))

    def next_piece(self, final: bool) -> Optional[Piece]:
        """Give what has not been handed on: whole lines, with `final` the rest as well; None if nothing."""
        data = self._new_bytes()
        length = data.rfind(b"\n") + 1
        if not length and (final or len(data) == MAX_PIECE):
            length = len(data)
        if not length:
            return None
        piece = Piece(self.position, data[:length])
        self.position += length
        self._tail = piece.data[-_TAIL:]
        return piece

    def _new_bytes(self) -> bytes:
        """Read on from the position; from the beginning in a file that has been emptied since."""
        start = self.position - self._base - len(self._tail)
        data = os.pread(self._fd, len(self._tail) + MAX_PIECE, start)
        new = data[len(self._tail) :]
        if data.startswith(self._tail) and (new or self._size() >= self.position - self._base):
            return new
        self._begin_anew()
        return os.pread(self._fd, MAX_PIECE, 0)

    def bound(self) -> None:
        """Give the disk space beyond the limit back, oldest first; where the file system cannot, nothing."""
        end = self._end()
        if end - self._first <= self._limit:
            return
        cut = (end - self._base - self._limit * 3 // 4) // _BLOCK * _BLOCK
        if not _punch(self._fd, self._first - self._base, cut - (self._first - self._base)):
            return
        self._first = self._base + cut
        if self.position < self._first:
            self.dropped += self._first - self.position
            self._jump(self._first)
        kept = self.position - self._first
        self._tail = self._tail[max(0, len(self._tail) - kept) :]

    def close(self) -> None:
        """Leave the file to itself."""
        os.close(self._fd)

    def remove(self) -> None:
        """Close and delete the file."""
        self.close()
        os.unlink(self.path)

    def _end(self) -> int:
        """Give the offset after the last byte; takes note of a file that has become shorter."""
        size = self._size()
        if size < self.position - self._base:
            self._begin_anew()
        return self._base + size

    def _size(self) -> int:
        return os.fstat(self._fd).st_size

    def _jump(self, position: int) -> None:
        self.position, self._tail = position, b""

    def _begin_anew(self) -> None:
        """Count the file's first byte as the one that follows what was handed on."""
        self._base = self._first = self.position
        self._tail = b""


def _punch(fd: int, offset: int, length: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    return bool(libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, length) == 0)
