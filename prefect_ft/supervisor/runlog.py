"""run.log: the output of all attempts, each line with its attempt, worker and rank before it."""

from __future__ import annotations

import os
from pathlib import Path

from prefect_ft.journal import append_whole


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
        try:
            append_whole(self._fd, data)
        except OSError:
            self.lost_lines += len(lines)

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1  # the number may soon be somebody else's
