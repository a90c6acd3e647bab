"""Recognises another start of a program in one log by the log's first lines.

Several runs may append to one file. Their timestamps go forwards, and steps appear only once they train, so nothing
else separates the runs of every program. Owns the choice of these lines, and when they show a start.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any

import re2

from prefect_ft.decide.classify.heads import after_time, read_line, stamp_of
from prefect_ft.decide.classify.progress import place_of
from prefect_ft.decide.classify.tracebacks import HEADER

__all__ = ["Beginning", "Warned"]

_LINES = 40  # at the beginning of a log, from which the patterns are taken
_KEYS = 12  # patterns at most
_NEEDED = 3  # lines in order that show another start
_EARLY = 3  # a start has to begin with one of this many first patterns
_APART_BYTES = 8000  # the greatest distance between two lines of a start
_TEXT_BYTES = 160  # of a line that are compared
_LETTERS = 8  # that a line must have
_APART_S = 60
"""Between the first lines of two runs, or before that of another: the processes of one run start sooner."""
_NUMBER = re.compile(r"\d+")
_SPACES = re.compile(r"(?:\\ )+")
_LETTER = re.compile(r"[A-Za-z]")
_NOT_TELLING = re.compile(r"\s|nohup: |warnings\.warn|.{0,32}\bAttempt \d+ of http call\b")
_SAYS_SO = re.compile(r"(?i)\b(?:start(?:s|ed|ing)?|begin(?:s|ning)?|began|launch(?:ed|ing)?)\b")
"""How a program says that it begins."""
_OPENS = re.compile(
    r"(?i)\b(?:start(?:ed|ing)?|beginning|launch(?:ed|ing)?|initiali[sz](?:ed|ing))\b[^:]*(?:: |$)"
)
"""A line with which a program may begin, up to its argument, which may differ between runs."""


class Beginning:
    """The first lines of one run in a log, up to its first failure."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, bytes]] = []
        self._read: list[str] = []
        self._stamps: list[float | None] = []
        self.is_closed = False
        """Whether the first failure has been reported."""
        self._texts: list[bytes] = []
        """A text of each of the lines with one of which a start has to begin; none: no start can be recognised."""
        self._is_said = False
        """Whether the first line is dated and says that the program begins: then it shows another start alone."""
        self._opening = ""
        """The beginning of the first line, if that shows another start after a pause; else empty."""
        self._last, self._found, self._at = -1, 0, 0

    def take(self, block: bytes, offset: int) -> None:
        """Keep the first of these whole lines, without terminal sequences; `offset` is their place in the log."""
        start = 0
        while len(self._lines) < _LINES and not self.is_closed and (stop := block.find(b"\n", start)) != -1:
            text = block[start:stop].rstrip(b"\r").rpartition(b"\r")[2][:_TEXT_BYTES]
            self._lines.append((offset + start, text))
            start = stop + 1

    def close(self, offset: int) -> None:
        """Let the beginning end where the first failure is reported. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        for place, raw in self._lines:
            text = after_time(read_line(raw).text)
            if place >= offset or HEADER in text:
                break
            if _is_telling(text):
                whole = raw.decode(errors="replace")
                self._read.append(_NUMBER.sub("0", whole))
                self._stamps.append(stamp_of(whole))
        keys = self.keys
        is_dated = keys[:1] == self._read[:1] and self._begins_with_time()
        self._is_said = is_dated and _SAYS_SO.search(keys[0]) is not None
        if is_dated and (opens := _OPENS.search(keys[0])) is not None:
            self._opening = keys[0][: opens.end()]
        if len(keys) >= _NEEDED or self._is_said or self._opening:
            telling = [key for key in (*keys[:_EARLY], self._opening) if key]
            self._texts = [max(_NUMBER.split(key), key=len).encode() for key in telling]

    def _begins_with_time(self) -> bool:
        text = read_line(self._lines[0][1]).text if self._read else ""
        said = after_time(text)
        return said != text and _is_telling(said)

    @property
    def keys(self) -> list[str]:
        """The first lines, with 0 for each number, without those that several processes have each printed."""
        return [key for key in dict.fromkeys(self._read) if not self._is_of_several(key)][:_KEYS]

    def _is_of_several(self, key: str) -> bool:
        """Return whether a line repeats with fewer than `_NEEDED` different ones in between."""
        at = [index for index, one in enumerate(self._read) if one == key]
        return any(
            len({*self._read[one + 1 : next_one]}) < _NEEDED and not self._are_of_two_runs(one, next_one)
            for one, next_one in pairwise(at)
        )

    def _are_of_two_runs(self, one: int, other: int) -> bool:
        """Return whether two lines were printed too far apart for processes of one run."""
        begun, ended = self._stamps[one], self._stamps[other]
        return begun is not None and ended is not None and ended - begun >= _APART_S

    def occurrences(self, block: bytes, at: int) -> deque[tuple[int, int]]:
        """Return the offset and the number of each first line that a block repeats from `at` on."""
        found: deque[tuple[int, int]] = deque()
        if not self._texts or not (self._found or any(block.find(text, at) != -1 for text in self._texts)):
            return found
        while (match := self._pattern.search(block, at)) is not None:
            found.append((match.start(match.lastindex), match.lastindex - 1))
            at = match.end()
        return found

    @cached_property
    def _pattern(self) -> Any:
        keys = [*self.keys, self._opening] if self._opening else self.keys
        return re2.compile("(?m)(?:^|\r)(?:" + "|".join(f"({_pattern_of(key)})" for key in keys) + ")")

    def see(self, index: int, offset: int, pause_s: Callable[[], float] = lambda: 0.0) -> bool:
        """Take the number of a repeated line and its offset in the log; return whether it completes another start.

        `pause_s` returns how long after the line above it was logged.
        """
        # the pattern of the opening is the last one, and the first line matches its own pattern first
        is_opening = bool(self._opening) and index in (0, len(self.keys))
        if is_opening and pause_s() >= _APART_S:
            self.clear()
            return True
        if index >= len(self.keys):
            return False
        is_next = index >= self._last and offset - self._at <= _APART_BYTES
        if not (self._found and is_next):
            self._found = int(index < _EARLY)
        elif index > self._last:
            self._found += 1
        self._last, self._at = index, offset
        if self._found < _NEEDED and not (self._is_said and index == 0):
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Forget the repeated lines seen so far."""
        self._last, self._found, self._at = -1, 0, 0


_HEADS = rb"(?m)(?:^|\r)(?:\S+ +){0,3}?"
_OF_PYTHON = rb"\S+\.py:\d+: \w*Warning: "
_OF_LIBRARIES = rb"\S{0,40}?(?:WARNING:tensorflow:From |\[\d\d:\d\d:\d\d\] WARNING: \S+\.cc:\d+: )"
"""How TensorFlow and XGBoost do."""
_WARNING = re2.compile(_HEADS + _OF_PYTHON)
"""How Python warns, at once: after an exception, only a program that begins does so, or one that exits."""
_FIRST_WARNING = re2.compile(_HEADS + b"(?:" + _OF_PYTHON + b"|" + _OF_LIBRARIES + b")")
"""The same, and how libraries warn as they are set up: also a program does so later, as it saves its state."""
_WARNS = re.compile(rb"Warning: |WARNING:tensorflow:From |\] WARNING: ")

_AT_EXIT = (b"resource_tracker",)
_BAR = "%|"
_AT_EXIT_LINES = 3  # that a program may print with a warning as it exits, further lines of a message left out


class Warned:
    """A warning after the exception that ended a program: another program has begun."""

    def __init__(self) -> None:
        self.rank: str | None = None
        """The prefix of the program that the last finding ended; `None`: it ended none."""
        self.is_first = False
        """Whether the program had not got on: what a library says as it is set up is another's then."""
        self.at = -1
        """The offset of the warning in the log; -1: there is none."""

    def search(self, block: bytes, at: int, end: int) -> int | None:
        """Return the place of a warning in a part of a block, behind the prefix of the program that is over."""
        if self.rank is None or _WARNS.search(block, at, end) is None:
            return None
        pattern = _FIRST_WARNING if self.is_first else _WARNING
        while (warning := pattern.search(block, at, end)) is not None:
            is_at_exit = any(name in warning[0] for name in _AT_EXIT)
            if not is_at_exit and read_line(warning[0]).rank == self.rank:
                place: int = warning.start()
                return place
            at = warning.end()
        return None

    def is_at_end(self, recent: bytes, offset: int) -> bool:
        """Return whether hardly anything follows the warning; `recent` is the end of the log, from an offset on."""
        if self.at < offset:
            return False
        after = recent[self.at - offset :].split(b"\n")
        begun = sum(not _is_indented(read_line(line).text) for line in after[: 2 * _AT_EXIT_LINES + 4])
        return begun <= _AT_EXIT_LINES


def _is_indented(text: str) -> bool:
    rest = after_time(text)
    return not rest or (rest[0].isspace() and _BAR not in rest)


def _is_telling(text: str) -> bool:
    """Return whether a line can mark a start: it is not code, a separator or progress."""
    return (
        _NOT_TELLING.match(text) is None and len(_LETTER.findall(text)) >= _LETTERS and place_of(text) is None
    )


def _pattern_of(key: str) -> str:
    """Return a pattern for a first line: its numbers are others each time, and may be aligned to a column."""
    return r"\d+".join(_SPACES.sub(" +", re.escape(part)) for part in _NUMBER.split(key))
