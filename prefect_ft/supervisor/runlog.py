"""run.log: the output of all attempts, each line with its attempt, worker and rank before it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class RunLog:
    """Appends to one file. A disk that takes no more loses lines, never the run; they are counted."""

    def __init__(self, path: Path) -> None:
        self.lost_lines = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, attempt: int, worker: int, rank: int, text: str) -> None:
        """Append a piece of output; lone surrogates become the bytes that were no UTF-8."""
        lines = text.removesuffix("\n").encode("utf-8", "surrogateescape").split(b"\n")
        prefix = b"[a%d w%d r%d] " % (attempt, worker, rank)
        data = b"".join(prefix + line + b"\n" for line in lines)
        size = os.fstat(self._fd).st_size
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            self.lost_lines += len(lines)
            with suppress(OSError):  # no half of a line for the next one to go on with
                os.ftruncate(self._fd, size)

    def close(self) -> None:
        os.close(self._fd)
