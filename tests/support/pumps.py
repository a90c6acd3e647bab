"""Lines that attack a pattern by what it says itself: a part that may repeat, again and again.

A beginning that the pattern asks for leads to the repeated part, and what follows keeps it from matching: a matcher
that goes back tries all the ways there are.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import sre_constants as sre
    import sre_parse

_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT)
_MANY = 8
"""A part that may repeat no more often is not pumped."""

_TASTES = ("a1. -/_:=,[(\"'A0x", "10.a- /_:", " .-/:_=,a1", "\t :/-.a1")
"""Characters in the order in which they are taken where a pattern takes several: other tastes, other lines."""

_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d", sre.CATEGORY_NOT_DIGIT: r"\D", sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W", sre.CATEGORY_SPACE: r"\s", sre.CATEGORY_NOT_SPACE: r"\S",
}  # fmt: skip


class Pump(NamedTuple):
    """What comes before, and what repeats."""

    before: str
    part: str

    def line(self, length: int, end: str) -> str:
        """Return a line of about a length."""
        return self.before + self.part * max(1, (length - len(self.before)) // len(self.part)) + end


def pumps_of(pattern: str) -> set[Pump]:
    """Return all that can be made of a pattern; raises re.error where Python cannot read it."""
    tree = list(sre_parse.parse(pattern))
    found = {pump for taste in _TASTES for pump in _pumps(tree, "", taste)}
    return {pump for pump in found if pump.part and "\n" not in pump.part + pump.before}


def _pumps(nodes: Iterable[tuple[Any, Any]], before: str, taste: str) -> Iterator[Pump]:
    for kind, value in nodes:
        if kind in _REPEATS and value[1] > _MANY:
            yield Pump(before, _example(value[2], taste))
        for inner in _inner(kind, value):
            yield from _pumps(inner, before, taste)
        before += _one(kind, value, taste)


def _inner(kind: Any, value: Any) -> Sequence[Any]:
    """Return the sequences that a node holds: of those that are looked for ahead or behind as well."""
    if kind in _REPEATS:
        return [value[2]]
    if kind is sre.SUBPATTERN:
        return [value[3]]
    if kind is sre.BRANCH:
        return list(value[1])
    return [value[1]] if kind in (sre.ASSERT, sre.ASSERT_NOT) else []


def _example(nodes: Iterable[tuple[Any, Any]], taste: str) -> str:
    return "".join(_one(kind, value, taste) for kind, value in nodes)


def _one(kind: Any, value: Any, taste: str) -> str:
    """Return a text that a node matches."""
    if kind is sre.LITERAL:
        return chr(value)
    if kind in (sre.NOT_LITERAL, sre.ANY, sre.IN):
        return next((char for char in taste if _takes(kind, value, char)), _first(kind, value))
    if kind in (*_REPEATS, sre.SUBPATTERN, sre.BRANCH):
        return _example(_inner(kind, value)[0], taste) * (value[0] if kind in _REPEATS else 1)
    return ""  # a place


def _takes(kind: Any, value: Any, char: str) -> bool:
    if kind is sre.ANY:
        return char != "\n"
    if kind is sre.NOT_LITERAL:
        return ord(char) != value
    is_negated = value[0][0] is sre.NEGATE
    return any(_holds(*item, char) for item in value) is not is_negated


def _holds(kind: Any, value: Any, char: str) -> bool:
    if kind is sre.LITERAL:
        return ord(char) == value
    if kind is sre.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    return kind is sre.CATEGORY and re.match(_CATEGORIES[value], char) is not None


def _first(kind: Any, value: Any) -> str:
    """Return a character of a class that is to no taste."""
    first, what = value[0] if kind is sre.IN else (None, None)
    return chr(what if first is sre.LITERAL else what[0]) if first in (sre.LITERAL, sre.RANGE) else "~"
