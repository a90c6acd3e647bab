"""A rank's output: the file that the rank writes, read in whole lines, bounded without losing its place.

The rank holds the file open for appending, so that it goes on printing whoever dies. Offsets count from
the first byte that the rank ever wrote and stay valid for good: what must go is punched out of the file
(fallocate), never shifted.
"""

from __future__ import annotations

import ctypes
import os
from typing import Iterator, Tuple

MAX_PIECE = 256 << 10
"""Bytes; a line that is longer is handed on in pieces of this size."""

_KEEP_SIZE = 1
_PUNCH_HOLE = 2
_BLOCK = 4096


class Spool:
    """One output file. `position` is the offset up to which it has been handed on."""

    def __init__(self, path: str, limit_bytes: int) -> None:
        """`limit_bytes` is what stays on disk at most, handed on or not."""
        self.path = path
        self.position = 0
        self.dropped = 0
        """Bytes that were punched out before anybody fetched them."""
        self._limit = limit_bytes
        self._first = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    @property
    def size(self) -> int:
        """Bytes that the rank has written so far."""
        return os.fstat(self._fd).st_size

    def rewind(self, position: int) -> None:
        """Hand everything from `position` on again, to a reader who has only what is before it."""
        self.position = max(position, self._first)

    def pieces(self, final: bool = False) -> Iterator[Tuple[int, bytes]]:
        """Give (offset, bytes) of what has not been handed on: whole lines, with `final` the rest as well."""
        while True:
            data = os.pread(self._fd, MAX_PIECE, self.position)
            end = data.rfind(b"\n") + 1
            if not end and (final or len(data) == MAX_PIECE):
                end = len(data)
            if not end:
                return
            offset = self.position
            self.position += end
            yield offset, data[:end]

    def bound(self) -> None:
        """Give the disk space beyond the limit back, oldest first; where the file system cannot, nothing."""
        size = self.size
        if size - self._first <= self._limit:
            return
        first = (size - self._limit * 3 // 4) // _BLOCK * _BLOCK
        if not _punch(self._fd, self._first, first - self._first):
            return
        self._first = first
        if self.position < first:
            self.dropped += first - self.position
            self.position = first

    def close(self) -> None:
        os.close(self._fd)

    def remove(self) -> None:
        """Close and delete the file."""
        self.close()
        os.unlink(self.path)


def _punch(fd: int, offset: int, length: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    return bool(libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, length) == 0)
