"""A rank's output: the file that the rank writes, read in whole lines, bounded without losing its place.

The rank holds the file open for appending, so it keeps printing when the agent or orchestrator dies. Offsets count from
the first byte that the rank ever wrote and stay valid for good: what must go is punched out of the file
(fallocate), never shifted; and where a script empties the file (`echo ... > /dev/stderr` does), counting
goes on.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Dict, NamedTuple, Optional, Sequence

from prefect_ft.worker.masking import Secrets
from prefect_ft.worker.sieve import Sieve

MAX_PIECE = 256 << 10
"""Bytes; a line that is longer is handed on in pieces of this size."""

_TAIL = 64
"""How many bytes before the position are compared: if they differ, the file was emptied and has grown again."""

_CUT = 1 << 20
"""How many bytes to free at once, unless there is more: what is freed is sifted first."""

_LOOK = 1 << 20
"""How many bytes to sift at once; if more have come meanwhile, only the end."""

_LAST_LOOK = 16 << 20
"""The same where nothing more will come and nothing waits."""

_KEEP_SIZE = 1
_PUNCH_HOLE = 2
_BLOCK = 4096


class Piece(NamedTuple):
    """What a rank printed from `offset` on."""

    offset: int
    data: bytes


class Keeping(NamedTuple):
    """How output is kept.

    `limit_bytes` is the most that stays on disk, handed on or not. `stays`: only an excerpt is handed on, not
    the output itself. `signs` are further texts that make a line interesting; `secrets` are texts that must
    not be shown.
    """

    limit_bytes: int
    stays: bool = False
    signs: Sequence[str] = ()
    secrets: Sequence[str] = ()


class Spool:
    """One output file. `position` is the offset up to which it has been handed on, or sifted."""

    def __init__(self, path: str, keeping: Keeping) -> None:
        self.path = path
        self.position = 0
        self.dropped = 0
        """Bytes that the reader will never get, because they were punched out before."""
        self._keeping = keeping
        self._secrets = Secrets(keeping.secrets)
        """The file contains them; what is returned here is masked."""
        self._margin = -(-self._secrets.reach // _BLOCK) * _BLOCK
        """Bytes before the first one that stay on disk: they show whether it is within a secret."""
        self._sieve = Sieve(keeping.signs)
        """Sifts what is freed, and everything where output stays."""
        self._base = 0
        """The offset of the file's first byte: above 0 once a script has emptied the file."""
        self._first = 0
        """The offset of the first byte that is still there."""
        self._tail = b""
        """The last bytes handed on, up to the position; empty after a jump."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    @property
    def has_begun(self) -> bool:
        """Whether anything has been printed."""
        return self._end() > 0

    def rewind(self, position: int) -> None:
        """Hand on everything from `position` again, to a reader that has only what is before it."""
        if self._keeping.stays:
            return
        end = self._end()
        self.dropped = max(0, self._first - position)
        self._jump(min(max(position, self._first), end))

    def next_piece(self, final: bool) -> Optional[Piece]:
        """Return output not handed on yet: whole lines, with `final` the rest as well; None if there is none."""
        data = self._new_bytes()
        length = data.rfind(b"\n") + 1
        if not length and final:
            length = len(data)
        elif not length and len(data) == MAX_PIECE:
            length = max(
                1, MAX_PIECE - self._secrets.reach
            )  # what follows shows whether a secret begins before
        if not length:
            return None
        piece = Piece(self.position, self._masked(self.position, data[:length]))
        self.position += length
        self._tail = data[:length][-_TAIL:]
        return piece

    def _masked(self, offset: int, data: bytes) -> bytes:
        """Return what was read from an offset on, with secrets and parts of secrets masked."""
        if not self._secrets.words:
            return data
        start, reach = offset - self._base, self._secrets.reach
        before = os.pread(self._fd, min(reach, start), max(0, start - reach))
        after = os.pread(self._fd, reach, start + len(data))
        return self._secrets.mask(before + data + after)[len(before) : len(before) + len(data)]

    def _new_bytes(self) -> bytes:
        """Read on from the position; from the beginning in a file that has been emptied since."""
        start = self.position - self._base - len(self._tail)
        data = os.pread(self._fd, len(self._tail) + MAX_PIECE, start)
        new = data[len(self._tail) :]
        if data.startswith(self._tail) and (new or self._size() >= self.position - self._base):
            return new
        self._restart_after_truncation()
        return os.pread(self._fd, MAX_PIECE, 0)

    def sift(self, final: bool) -> bool:
        """Sift the next piece instead of handing it on; False: there is none."""
        end = self._end()
        if end - self.position > _LAST_LOOK:
            self._look_through(end, _LOOK)
            self._jump(self._sieve.offset)
        piece = self.next_piece(final)
        if piece is not None:
            self._sieve.take(*piece)
        return piece is not None

    def excerpt(self) -> Dict[str, Any]:
        """Return what was chosen by sifting, as the fields of an `excerpt` event."""
        parts = [
            {"offset": part.offset, "line": part.line, "text": part.data.decode("utf-8", "surrogateescape")}
            for part in self._sieve.parts()
        ]
        return {"bytes": self._sieve.offset, "lines": self._sieve.lines, "path": self.path, "parts": parts}

    def excerpt_of_all(self) -> Dict[str, Any]:
        """Return what is chosen from all output, when nothing more will come."""
        self._look_through(self._end(), _LAST_LOOK)
        return self.excerpt()

    def _look_through(self, end: int, most: int) -> None:
        """Sift what is left before an offset: of more than `most` bytes only the end."""
        start = max(self._first, self._sieve.offset)
        while start < end and (data := os.pread(self._fd, min(MAX_PIECE, end - start), start - self._base)):
            look = self._sieve.skip if end - start > most else self._sieve.take
            look(start, self._masked(start, data))
            start += len(data)

    def bound(self) -> None:
        """Free the disk space beyond the limit, oldest first, where the file system can."""
        end, limit = self._end(), self._keeping.limit_bytes
        if end - self._first <= limit:
            return
        cut = (end - self._base - (limit - min(limit // 4, _CUT))) // _BLOCK * _BLOCK
        self._look_through(self._base + cut, _LOOK)
        gone = max(0, self._first - self._base - self._margin)
        if not _punch(self._fd, gone, cut - self._margin - gone):
            return
        self._first = self._base + cut
        if self.position < self._first:
            self.dropped += self._first - self.position
            self._jump(self._first)
        kept = self.position - self._first
        self._tail = self._tail[max(0, len(self._tail) - kept) :]

    def printed(self) -> int:
        """Return how many bytes the file holds, to see whether that changes."""
        return self._size()

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def remove(self) -> None:
        """Close and delete the file."""
        self.close()
        os.unlink(self.path)

    def _end(self) -> int:
        """Return the offset after the last byte; notices a file that has become shorter."""
        size = self._size()
        if size < self.position - self._base:
            self._restart_after_truncation()
        return self._base + size

    def _size(self) -> int:
        return os.fstat(self._fd).st_size

    def _jump(self, position: int) -> None:
        self.position, self._tail = position, b""

    def _restart_after_truncation(self) -> None:
        """Count the file's first byte as the one after what was handed on."""
        self._base = self._first = self.position
        self._tail = b""


def _punch(fd: int, offset: int, length: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    return bool(libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, length) == 0)
