"""What a log printed before its last traceback: lines like those at its end show that the run went on.

Owns how much is kept of it, and when lines are alike: except for their numbers, and of the traceback's rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from prefect_ft.decide.classify.heads import Line, after_time, read_line

__all__ = ["Before"]

_BYTES = 4000
"""How much is kept of what was printed before."""

_ALIKE = 3
"""How many of the last lines must be like lines before."""

_LETTERS = 8
"""How long a line without its numbers must be to be compared."""

_NUMBER = re.compile(r"\d+")


class Before:
    """The last lines before the last traceback of a log."""

    def __init__(self) -> None:
        self._text = b""
        self._at = 0
        self._rank = ""

    def keep(self, text: bytes, at: int, rank: str) -> None:
        """Keep the end of what precedes a traceback that begins at an offset, of a rank as its prefix names it."""
        self._text, self._at, self._rank = text[-_BYTES:], at, rank

    def goes_on(self, last: Sequence[Line], size: int) -> bool:
        """Return whether the last lines of a log of this size show that the run went on after the traceback."""
        if not self._text:
            return False
        lines = (raw.rstrip(b"\r").rpartition(b"\r")[2] for raw in self._text.split(b"\n"))
        before = set(self._forms(read_line(raw) for raw in lines))
        after = self._forms(_within(last, size - self._at))
        return sum(form in before for form in after) >= _ALIKE

    def _forms(self, lines: Iterable[Line]) -> Iterable[str]:
        """Return the lines of the traceback's rank without their numbers: those that are long enough, and no message's.

        Further lines of a message are indented.
        """
        forms = (_NUMBER.sub("", after_time(line.text)) for line in lines if line.rank == self._rank)
        return (form for form in forms if len(form) >= _LETTERS and not form[0].isspace())


def _within(last: Sequence[Line], size: int) -> Iterable[Line]:
    """Return the lines among the last of a log that are within so many bytes of its end."""
    for line in reversed(last):
        size -= len(line.text.encode()) + 1
        if size < 0:
            return
        yield line
