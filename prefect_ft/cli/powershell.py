"""Joins the lines that Windows PowerShell breaks: what a program says to standard error, at the width of its window."""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Iterable, Iterator

__all__ = ["unbroken"]

_PLACE = re.compile(r"(?:At (?:line|\S.*)|\S.{0,24}): ?\d+ .{0,12}: ?\d*\s*$")
"""The second line of PowerShell's report, in any language."""
_CODE = "+ "
"""How the lines below it begin, which show the window's width."""
_KIND = "    + CategoryInfo"
"""How the line below these begins, in any language."""
_MARKS = re.compile(r"[\s^~]+$")
_FIRST = re.compile(r"\S+ : ")
"""How the first one begins: with the program's name."""
_REPORT_LINES = 15
_HELD_LINES = 40  # above the place, among which the report begins


def unbroken(texts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a text that comes in pieces, those that PowerShell broke joined.

    An empty line stands for each that was joined to the one above, so that lines keep their numbers.
    """
    lines = _lines(texts)
    held: deque[str] = deque()
    for line in lines:
        held.append(line)
        if line.startswith(_KIND):
            below = [*itertools.islice(lines, _REPORT_LINES)]
            code = next((at for at, text in enumerate(held) if text.startswith(_CODE)), len(held) - 1)
            begun = max((at for at in range(code) if _FIRST.match(held[at])), default=code)
            report = itertools.chain(
                itertools.islice(held, code, None), itertools.takewhile(str.strip, below)
            )
            width = max(len(text.rstrip("\r\n")) for text in report)
            yield from itertools.islice(held, begun)
            yield from _joined(itertools.chain(itertools.islice(held, begun, None), below, lines), width)
            return
        if len(held) > _HELD_LINES:
            yield held.popleft()
    yield from held


def _lines(texts: Iterable[str]) -> Iterator[str]:
    rest = ""
    for text in texts:
        *lines, rest = (rest + text).split("\n")
        yield from (f"{line}\n" for line in lines)
    if rest:
        yield rest


def _joined(lines: Iterator[str], width: int) -> Iterator[str]:
    parts: list[str] = []
    for line in lines:
        part = line.rstrip("\r\n")
        if parts and not _is_broken(parts[-1], part, width):
            yield _one_line(parts)
            parts = []
        parts.append(part)
    if parts:
        yield _one_line(parts)


def _one_line(parts: list[str]) -> str:
    return "".join(parts) + "\n" * len(parts)


def _is_broken(line: str, below: str, width: int) -> bool:
    """Return whether the line below continues a line: that is full, or the next word did not fit."""
    if not below.strip() or len(line) > width or _PLACE.match(below):
        return False
    if len(line) == width:
        is_mark = _MARKS.match(line) is not None and _MARKS.match(below[0]) is None
        return not (below.startswith("  ") or is_mark)
    return line.endswith(" ") and below[0] != " " and len(line) + len(below.split(None, 1)[0]) >= width
