"""What a log printed before its last traceback: lines like those at its end show that the run went on.

Owns how much is kept of it, and when lines are alike: except for their numbers, and of the traceback's rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from prefect_ft.decide.classify.heads import Line, read_line

__all__ = ["Before"]

_BYTES = 4000
"""How much is kept of what was printed before, and how much must follow: the traceback is not compared with itself."""

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

    def goes_on(self, last: Iterable[Line], size: int) -> bool:
        """Return whether the last lines of a log of this size show that the run went on after the traceback."""
        if not self._text or size - self._at < _BYTES:
            return False
        lines = (raw.rstrip(b"\r").rpartition(b"\r")[2] for raw in self._text.split(b"\n"))
        before = set(self._forms(read_line(raw) for raw in lines))
        return sum(form in before for form in self._forms(last)) >= _ALIKE

    def _forms(self, lines: Iterable[Line]) -> Iterable[str]:
        """Return the lines of the traceback's rank without their numbers, those that are long enough."""
        forms = (_NUMBER.sub("", line.text) for line in lines if line.rank == self._rank)
        return (form for form in forms if len(form) >= _LETTERS)
