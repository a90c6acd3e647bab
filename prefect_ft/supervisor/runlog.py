"""run.log: the output of all attempts, each line with its attempt, worker and rank before it."""

from __future__ import annotations

from pathlib import Path


class RunLog:
    """Appends to one file. A disk that takes no more loses lines, never the run; they are counted."""

    def __init__(self, path: Path) -> None:
        self.lost_lines = 0
        self._file = path.open("ab", buffering=0)

    def write(self, attempt: int, worker: int, rank: int, text: str) -> None:
        """Append a piece of output; lone surrogates become the bytes that were no UTF-8."""
        lines = text.removesuffix("\n").encode("utf-8", "surrogateescape").split(b"\n")
        prefix = b"[a%d w%d r%d] " % (attempt, worker, rank)
        try:
            self._file.write(b"".join(prefix + line + b"\n" for line in lines))
        except OSError:
            self.lost_lines += len(lines)

    def close(self) -> None:
        self._file.close()
