"""Joins the lines that Windows PowerShell breaks: what a program says to standard error, at the width of its window."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

__all__ = ["unbroken"]

_KIND = "\n    + CategoryInfo"
"""The third part of PowerShell's report, in any language."""
_WHOLE = re.compile(r"\n {4}\+ CategoryInfo .*\r?\n {4}\+ FullyQualifiedErrorId")
"""How it begins in a window that is wide enough: then nothing shows its width, and hardly anything is broken."""
_FIRST = re.compile(r"^\S+ : ", re.MULTILINE)
"""How the first part begins: with the program's name."""
_PLACE = re.compile(r"(?:At (?:line|\S.*)|\S.{0,24}): ?\d+ .{0,12}: ?\d*\s*$")
"""The second part, in any language."""
_CODE = re.compile(r"^\+ ", re.MULTILINE)
"""How the lines below it begin, which are as wide as the window."""
_END = re.compile(r"\n\s*\n")
_RAISED = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?:: |\s*$)")
"""How the line below a traceback's frames begins."""
_MARKS = re.compile(r"[\s^~]+$")
_BEFORE, _AFTER = 1 << 13, 1 << 11  # characters of a report, above its third part and below
_LONGEST = 1 << 16  # characters of a line, whole or joined


def unbroken(texts: Iterable[str]) -> Iterator[str]:
    """Yield a text that comes in pieces, with the lines joined that PowerShell broke below its first report.

    An empty line stands for each that was joined to the one above, so that lines keep their numbers.
    """
    pieces = iter(texts)
    held = ""
    for piece in pieces:
        new = max(0, len(held) - len(_KIND))
        held += piece
        if (at := held.find(_KIND, new)) != -1:
            held = _longer(held, at + _AFTER, pieces)
            begun, width = _report(held, at)
            yield held[:begun]
            rest = itertools.chain([held[begun:]], pieces)
            yield from _joined(rest, width) if width else rest
            return
        if len(held) > _BEFORE:
            yield held[:-_BEFORE]
            held = held[-_BEFORE:]
    yield held


def _longer(text: str, size: int, pieces: Iterator[str]) -> str:
    """Return a text with the pieces that follow, until it has this many characters."""
    while len(text) < size and (more := next(pieces, "")):
        text += more
    return text


def _report(text: str, at: int) -> tuple[int, int]:
    """Return where the report begins whose third part is at a place, and the window's width; 0: not known."""
    if _WHOLE.match(text, at):
        return at, 0
    code = next((found.start() for found in _CODE.finditer(text, max(0, at - _AFTER), at)), at + 1)
    begun = max((found.start() for found in _FIRST.finditer(text, 0, code)), default=code)
    end = found.start() if (found := _END.search(text, at)) else len(text)
    return begun, max(len(line.rstrip("\r")) for line in text[code:end].split("\n"))


def _joined(pieces: Iterable[str], width: int) -> Iterator[str]:
    rest = ""
    for piece in pieces:
        whole, rest = _joined_lines(rest + piece, width)
        yield whole
        if len(rest) > _LONGEST:  # no line of a window
            yield _all_joined(rest, width)
            rest = ""
    yield _all_joined(rest, width)


def _all_joined(text: str, width: int) -> str:
    return "\n".join(map(_one_line, _groups(text.split("\n"), width)))


def _joined_lines(text: str, width: int) -> tuple[str, str]:
    """Return the lines of a text joined, and the last one as it is: it may go on in the next piece."""
    *lines, rest = text.split("\n")
    groups = [*_groups(lines, width)]
    last = groups.pop() if groups else []
    whole = "".join(f"{_one_line(group)}\n" for group in groups)
    return whole, "\n".join([*last, rest])


def _groups(lines: Iterable[str], width: int) -> Iterator[list[str]]:
    """Yield the lines that belong together."""
    group: list[str] = []
    for line in lines:
        if group and not _is_broken(group[-1].rstrip("\r"), line.rstrip("\r"), width):
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _one_line(group: list[str]) -> str:
    return (
        group[0]
        if len(group) == 1
        else "".join(line.rstrip("\r") for line in group) + "\n" * (len(group) - 1)
    )


def _is_broken(line: str, below: str, width: int) -> bool:
    """Return whether the line below continues a line: that is full, or the next word did not fit."""
    if not below.strip() or len(line) > width or _PLACE.match(below) or _RAISED.match(below):
        return False
    if len(line) == width:
        is_mark = _MARKS.match(line) is not None and _MARKS.match(below[0]) is None
        return not (below.startswith("  ") or is_mark)
    return line.endswith(" ") and below[0] != " " and len(line) + len(below.split(None, 1)[0]) >= width
