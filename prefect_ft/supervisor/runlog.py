"""run.log: the output of all attempts, each line with its attempt, worker and rank before it."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect_ft.journal import append_whole

_PLACE = struct.Struct("<QQ")
"""An attempt, and how many bytes of a rank's output in it are in the log."""


class RunLog:
    """Appends to one file. A disk that takes no more loses lines, never the run; they are counted.

    `places` is a file that remembers what has been written, for who goes on with the log after this
    process: it is told again, and nothing is to stand there twice.
    """

    def __init__(self, path: Path, places: Path) -> None:
        self.lost_lines = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._places_fd = os.open(places, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        data = os.pread(self._places_fd, os.fstat(self._places_fd).st_size, 0)
        known = data[: len(data) // _PLACE.size * _PLACE.size]
        self._places: dict[int, tuple[int, int]] = dict(enumerate(_PLACE.iter_unpack(known)))

    def write(self, attempt: int, worker: int, rank: int, text: str, offset: int) -> None:
        """Append a piece of output, or what of it is not there yet; `offset` is its first byte's.

        Lone surrogates become the bytes that were no UTF-8.
        """
        output = text.encode("utf-8", "surrogateescape")
        last_attempt, end = self._places.get(rank, (0, 0))
        if last_attempt == attempt and offset < end:
            output, offset = output[end - offset :], end
        if not output:
            return
        self._append(attempt, worker, rank, output)
        self._remember(rank, attempt, offset + len(output))

    def write_excerpt(self, attempt: int, worker: int, rank: int, excerpt: Mapping[str, Any]) -> None:
        """Append what was chosen of output that did not come, so far as it is not there yet."""
        for part in excerpt["parts"]:
            last_attempt, end = self._places.get(rank, (0, 0))
            if part["offset"] > (end if last_attempt == attempt else 0):
                self.note(attempt, worker, rank, f"output up to line {part['line'] - 1} left out")
            self.write(attempt, worker, rank, part["text"], part["offset"])

    def note(self, attempt: int, worker: int, rank: int, text: str) -> None:
        """Append a line about a rank's output that is none of it."""
        self._append(attempt, worker, rank, f"[prefect-ft] {text}".encode("utf-8", "surrogateescape"))

    def _append(self, attempt: int, worker: int, rank: int, output: bytes) -> None:
        lines = output.removesuffix(b"\n").split(b"\n")
        prefix = b"[a%d w%d r%d] " % (attempt, worker, rank)
        try:
            append_whole(self._fd, b"".join(prefix + line + b"\n" for line in lines))
        except OSError:
            self.lost_lines += len(lines)

    def close(self) -> None:
        """Let go of the files. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            os.close(self._places_fd)
            self._fd = self._places_fd = -1  # the numbers may soon be somebody else's

    def _remember(self, rank: int, attempt: int, end: int) -> None:
        self._places[rank] = attempt, end
        with suppress(OSError):  # then a comeback writes it twice
            os.pwrite(self._places_fd, _PLACE.pack(attempt, end), rank * _PLACE.size)
