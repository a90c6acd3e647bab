"""The first lines of a log, by which another start of the same program in it is recognised.

A file that several attempts append to has no other bound that holds for all programs: their times go forward, and
their steps count only once they train. Knows lines only by their texts.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import re2

from prefect_ft.decide.classify.heads import Line, read_line
from prefect_ft.decide.classify.progress import place_of

__all__ = ["Beginning"]

_LINES = 40  # of a log among which its first ones are looked for
_KEYS = 12  # of them that are known again
_NEEDED = 3  # of those that show another start, one after the other
_EARLY = 3  # among the first of which the first one must be
_APART_BYTES = 8000  # between two of them at most
_TEXT_BYTES = 160  # of each
_LETTERS = 8  # in each at least

_NUMBER = re.compile(r"\d+")
_LETTER = re.compile(r"[A-Za-z]")
_OTHER = re.compile(r"\s|Traceback |nohup: |\s*warnings\.warn")


class Beginning:
    """The first lines of one log; `is_end` returns whether a line reports a failure, which ends a beginning."""

    def __init__(self, is_end: Callable[[Line], bool]) -> None:
        self._is_end = is_end
        self._left = _LINES
        self._read: list[str] = []
        self._pattern: Any = None
        self._last, self._found, self._at = -1, 0, 0

    def take(self, block: bytes) -> None:
        """Take the next whole lines of the log, without escapes; only the first ones of all matter."""
        start = 0
        while self._left and (stop := block.find(b"\n", start)) != -1:
            self._take(block[start:stop].rstrip(b"\r").rpartition(b"\r")[2][:_TEXT_BYTES])
            start = stop + 1

    def _take(self, raw: bytes) -> None:
        self._left -= 1
        line = read_line(raw)
        if self._is_end(line):
            self._left = 0
        elif _is_telling(line.text):
            self._read.append(_key_of(raw.decode(errors="replace")))
        if not self._left and len(keys := self.keys) >= _NEEDED:
            self._pattern = re2.compile("(?m)(?:^|\r)(?:" + "|".join(f"({key})" for key in keys) + ")")

    @property
    def keys(self) -> list[str]:
        """The patterns of the lines that are known again: not those that each of several processes has printed."""
        return [key for key in dict.fromkeys(self._read) if not self._is_of_each(key)][:_KEYS]

    def _is_of_each(self, key: str) -> bool:
        """Return whether a line comes again with fewer than `_NEEDED` others in between."""
        at = [index for index, one in enumerate(self._read) if one == key]
        return any(len({*self._read[one + 1 : next_one]}) < _NEEDED for one, next_one in pairwise(at))

    def known_again(self, block: bytes, at: int) -> deque[tuple[int, int]]:
        """Return where in a block, from `at` on, the first lines of the log stand again: place and which of them."""
        found: deque[tuple[int, int]] = deque()
        while self._pattern is not None and (match := self._pattern.search(block, at)) is not None:
            found.append((match.start(), match.lastindex - 1))
            at = match.end()
        return found

    def is_another(self, index: int, place: int) -> bool:
        """Take such a line, by which it is and its place in the log; return whether the program has started again."""
        is_next = index >= self._last and place - self._at <= _APART_BYTES
        if not (self._found and is_next):
            self._found = int(index < _EARLY)
        elif index > self._last:
            self._found += 1
        self._last, self._at = index, place
        if self._found < _NEEDED:
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Forget what was found."""
        self._last, self._found, self._at = -1, 0, 0


def _is_telling(text: str) -> bool:
    """Return whether a line may be known again: no code, no separator, no place of a run."""
    return _OTHER.match(text) is None and len(_LETTER.findall(text)) >= _LETTERS and place_of(text) is None


def _key_of(text: str) -> str:
    return r"\d+".join(re.escape(part) for part in _NUMBER.split(text))
