"""run.log: the output of all attempts, each line prefixed with its attempt, worker and rank."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

from prefect_ft import pieces
from prefect_ft.amounts import count
from prefect_ft.journal.lines import append_whole
from prefect_ft.observe import Notice, tell
from prefect_ft.supervisor.events import Excerpt
from prefect_ft.supervisor.room import Room

LIMIT_BYTES = 1 << 30
"""The total size of the log's pieces, unless the job sets another."""

PIECES = 8
"""The number of pieces; the oldest is removed when a new one begins."""

_PLACE = struct.Struct("<QQ")
"""An attempt, and how many bytes of a rank's output in it have been logged."""


class RunLog:
    """Appends to one file, and rotates it when it is full. Without disk space lines are dropped, and counted.

    `places` is a file that records how much has been written, for the orchestrator that continues the log:
    output is reported to it again, and must not be written twice.
    """

    def __init__(
        self, path: Path, places: Path, limit_bytes: int = LIMIT_BYTES, room: Room | None = None
    ) -> None:
        """`limit_bytes` is for all pieces together."""
        self.lost_lines = 0
        self._path, self._limit_bytes = path, limit_bytes
        self._room = room or Room(path.parent)
        self._fd = _opened(path)
        self._size = os.fstat(self._fd).st_size
        self._places_fd = os.open(places, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        data = os.pread(self._places_fd, os.fstat(self._places_fd).st_size, 0)
        known = data[: len(data) // _PLACE.size * _PLACE.size]
        self._places: dict[int, tuple[int, int]] = dict(enumerate(_PLACE.iter_unpack(known)))
        self._lost_before: int | None = None
        """How many lines had been dropped when the disk became full; None: it is not full."""

    def write(self, attempt: int, worker: int, rank: int, text: str, offset: int) -> None:
        """Append a piece of output, or the part that is not logged yet; `offset` is that of its first byte.

        Lone surrogates become the original bytes that were not UTF-8.
        """
        output = text.encode("utf-8", "surrogateescape")
        last_attempt, end = self._places.get(rank, (0, 0))
        if last_attempt == attempt and offset < end:
            output, offset = output[end - offset :], end
        if not output:
            return
        self._append(attempt, worker, rank, output)
        self._remember(rank, attempt, offset + len(output))

    def write_excerpt(self, attempt: int, worker: int, excerpt: Excerpt) -> None:
        """Append an excerpt of output that was not forwarded, without what is logged already."""
        rank = excerpt.rank
        for part in excerpt.parts:
            last_attempt, end = self._places.get(rank, (0, 0))
            if part.offset > (end if last_attempt == attempt else 0):
                self.note(attempt, worker, rank, f"output up to line {part.line - 1} left out")
            self.write(attempt, worker, rank, part.text, part.offset)

    def note(self, attempt: int, worker: int, rank: int, text: str) -> None:
        """Append a note about a rank's output."""
        self._append(attempt, worker, rank, f"[prefect-ft] {text}".encode("utf-8", "surrogateescape"))

    def _append(self, attempt: int, worker: int, rank: int, output: bytes) -> None:
        lines = output.removesuffix(b"\n").split(b"\n")
        prefix = b"[a%d w%d r%d] " % (attempt, worker, rank)
        data = b"".join(prefix + line + b"\n" for line in lines)
        why = self._room.why_none() or self._wrote(data)
        if why is not None:
            self._is_without_room(why)
            self.lost_lines += len(lines)
        elif self._lost_before is not None:
            self._has_room_again(prefix)

    def _wrote(self, data: bytes) -> str | None:
        """Append to the newest piece, or to a new one if that is full; return why that failed."""
        try:
            if self._size >= self._limit_bytes // PIECES:
                self._turn()
            append_whole(self._fd, data)
        except OSError as exc:
            return exc.strerror or str(exc)
        self._size += len(data)
        return None

    def _turn(self) -> None:
        with suppress(OSError):  # then the piece grows on
            pieces.turn(self._path, self._limit_bytes - self._limit_bytes // PIECES)
            fd = _opened(self._path)
            os.close(self._fd)
            self._fd, self._size = fd, 0

    def _is_without_room(self, why: str) -> None:
        if self._lost_before is None:
            self._lost_before = self.lost_lines
            tell(
                Notice(
                    text=f"{self._path}: output is not written: {why}; free some space. The journal is still written"
                )
            )

    def _has_room_again(self, prefix: bytes) -> None:
        lost = self.lost_lines - (self._lost_before or 0)
        self._lost_before = None
        lines = count(lost, "line is", "lines are")
        tell(Notice(text=f"{self._path}: there is room again: output is written, {lines} lost"))
        before = count(lost, "line before the last was", "lines before the last were")
        self._wrote(prefix + f"[prefect-ft] {before} lost: there was no room\n".encode())

    def close(self) -> None:
        """Close the files. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            os.close(self._places_fd)
            self._fd = self._places_fd = -1  # the numbers may be reused

    def _remember(self, rank: int, attempt: int, end: int) -> None:
        self._places[rank] = attempt, end
        with suppress(OSError):  # then a comeback writes it twice
            os.pwrite(self._places_fd, _PLACE.pack(attempt, end), rank * _PLACE.size)


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
