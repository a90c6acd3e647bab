"""Lines that repeat except for their numbers, with the rule each matched: a log full of them is read fast.

Owns when a line need not be read again. Knows lines only by the rules that they matched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import re2

from prefect_ft.signatures import Signature, compiled, re2_options

__all__ = ["Repeats"]

_READ_FIRST = 8  # lines of a form that are read before others of it count as the same
_FORMS = 1024
_LINE_BYTES = 1000
_DIGITS = b"0123456789"
_LONG_NUMBER = re.compile(rb"\d{4,}")
_IN_PATTERN = re.compile(r"\\.|\{[^}]*\}|\[[^\]]*\]|\d+")


@dataclass(slots=True)
class _Form:
    """The rule that the lines of a form match, empty if none.

    `by_numbers`: short numbers distinguish such lines, so their forms contain them.
    """

    rule: str
    read: int = 0
    by_numbers: bool = False


class Repeats:
    """The rules of the lines of one log, by their form."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        self._signatures = tuple(signatures)
        self._forms: dict[bytes, _Form] = {}

    def __bool__(self) -> bool:
        return bool(self._forms)

    def rule_of(self, raw: bytes) -> str | None:
        """Return the rule of a line of a known form, empty if it matches none; `None` if it must be read."""
        form = self._forms.get(raw.translate(None, _DIGITS))
        if form is not None and form.by_numbers:
            form = self._forms.get(_LONG_NUMBER.sub(b"", raw))
        return form.rule if form is not None and form.read >= _READ_FIRST and not form.by_numbers else None

    def note(self, raw: bytes, rule: str) -> None:
        """Note the rule of a line."""
        if len(raw) > _LINE_BYTES:
            return
        if len(self._forms) >= _FORMS:
            self._forms.clear()
        form = self._count(raw.translate(None, _DIGITS), rule)
        if form.by_numbers:
            self._count(_LONG_NUMBER.sub(b"", raw), rule)
        elif form.read == _READ_FIRST:
            form.by_numbers = self._has_code(raw)

    def _count(self, key: bytes, rule: str) -> _Form:
        form = self._forms.get(key)
        if form is None or (form.rule != rule and not form.by_numbers):
            form = self._forms[key] = _Form(rule)
        form.read += 1
        return form

    def _has_code(self, raw: bytes) -> bool:
        """Return whether another number could change the line's rule: one that needs a certain number."""
        text, without = raw.decode(errors="replace"), raw.translate(None, _DIGITS)
        codes, numbered = self._numbered
        return any(compiled(codes[index]).search(without) is None for index in numbered.Match(text) or ())

    @cached_property
    def _numbered(self) -> tuple[tuple[str, ...], Any]:
        return _with_any_numbers(tuple(each.pattern for each in self._signatures))


@lru_cache(maxsize=4)  # the built-in catalogue, and those with a user's own signatures
def _with_any_numbers(patterns: tuple[str, ...]) -> tuple[tuple[str, ...], Any]:
    """Return the patterns that need certain numbers, and one automaton over them with any: it takes long to make."""
    codes = tuple(pattern for pattern in patterns if _any_number(pattern) != pattern)
    numbered = re2.Set.SearchSet(re2_options())
    for pattern in codes:
        numbered.Add(_any_number(pattern))
    numbered.Compile()
    return codes, numbered


def _any_number(pattern: str) -> str:
    """Return a pattern that has any number where one has certain ones."""
    return _IN_PATTERN.sub(lambda found: r"(?:\d+)" if found[0].isdigit() else found[0], pattern)
