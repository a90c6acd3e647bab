"""The catalogue of signatures, and how they are found in text.

Owns the two steps of a search: one automaton over the texts that matches must contain, then the few patterns that
are left. RE2 does both, in time linear in the text, whatever the patterns are. Knows nothing of files, ranks or
what an entry's role means for a verdict.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import re2
import yaml

from prefect_ft.decide.classify.literals import GAP, keys_of
from prefect_ft.signatures import EntryError, Signature, compiled, re2_options

__all__ = ["Catalogue", "builtin_catalogue", "with_own"]

_RESOURCE = "signatures.yaml"
_EXCEPTION = r"^(?:[\w.]+\.)?"
"""How the pattern of an exception's last line begins."""


class Match(NamedTuple):
    """What a line says: the entry, and the text in which it says so."""

    signature: Signature
    text: str


class Catalogue:
    """Signatures in their order, ready to be searched: where several match, the first one counts."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        """Raises EntryError for a duplicate id."""
        self.signatures: Sequence[Signature] = tuple(signatures)
        self._patterns: list[Any] = [None] * len(self.signatures)
        self._holders: dict[str, list[int]] = {}
        self._everywhere: list[int] = []
        seen: set[str] = set()
        for number, signature in enumerate(self.signatures):
            if signature.id in seen:
                raise EntryError(f"stands twice: {signature.id!r}", "id")
            seen.add(signature.id)
            self._file(number, signature.pattern)

    def _file(self, number: int, pattern: str) -> None:
        keys = keys_of(pattern)
        if keys is None:
            self._everywhere.append(number)
        for key in keys or ():
            self._holders.setdefault(key, []).append(number)

    def spotter(self, *others: str) -> Any:
        """Return the pattern over bytes that is in every line of interest, and in few others.

        `others` are texts that the caller looks for besides the catalogue's. Texts that occur only in noise and
        advice are left out: these entries matter only beside others.
        """
        telling = {number for number, each in enumerate(self.signatures) if each.role in ("root", "cascade")}
        parts = [*map(re2.escape, others)]
        parts += [
            key for key, numbers in self._holders.items() if telling.intersection(self._spotted(key, numbers))
        ]
        parts += [
            f"(?m:{self.signatures[number].pattern})" for number in self._everywhere if number in telling
        ]
        return compiled("|".join(parts))

    def _spotted(self, key: str, numbers: Sequence[int]) -> Sequence[int]:
        """Leave out exceptions whose key is unspecific: they count only at the end of a traceback."""
        if GAP not in key:
            return numbers
        return [number for number in numbers if not self.signatures[number].pattern.startswith(_EXCEPTION)]

    def is_spotted(self, signature: Signature) -> bool:
        """Return whether a line alone that an entry matches is of interest."""
        return signature.id not in self._in_tracebacks_only

    @cached_property
    def _in_tracebacks_only(self) -> frozenset[str]:
        numbers = {number for key, those in self._holders.items() for number in self._spotted(key, those)}
        return frozenset(
            one.id
            for number, one in enumerate(self.signatures)
            if number not in {*numbers, *self._everywhere}
        )

    def find(self, views: Sequence[str], *, is_raised: bool = False) -> Match | None:
        """Return the first entry that matches one of the views of a line; each is the end of the one before.

        So nothing before a message can hide its beginning.
        A raised exception (`is_raised`) is never taken for advice.
        """
        possible = self._possible(views[0])
        texts = [(view, view.encode()) for view in views] if possible else []
        for number in possible:
            if is_raised and self.signatures[number].role == "advice":
                continue
            pattern = self._pattern(number)
            if not _asks_where(self.signatures[number].pattern) and pattern.search(texts[0][1]) is None:
                continue
            for view, text in texts:
                if pattern.search(text) is not None:
                    return Match(self.signatures[number], view)
        return None

    def _possible(self, text: str) -> list[int]:
        found = set(self._everywhere)
        for keys, holders in self._searches:
            for index in keys.Match(text) or ():
                found.update(holders[index])
        return sorted(found)

    def _pattern(self, number: int) -> Any:
        known = self._patterns[number]
        if known is None:
            known = self._patterns[number] = compiled(self.signatures[number].pattern)
        return known

    @cached_property
    def _searches(self) -> list[tuple[Any, list[list[int]]]]:
        """Return the automata over the keys, each with its keys' entries: keys with gaps would slow down others."""
        with_gap = {key: GAP in key for key in self._holders}
        return [
            _search({key: self._holders[key] for key, has in with_gap.items() if has is wanted})
            for wanted in (False, True)
        ]

    def __iter__(self) -> Iterator[Signature]:
        return iter(self.signatures)


def _search(holders: Mapping[str, list[int]]) -> tuple[Any, list[list[int]]]:
    keys = re2.Set.SearchSet(re2_options())
    for key in holders:
        keys.Add(key)
    keys.Compile()
    return keys, list(holders.values())


_PLACE_FIRST = re.compile(r"\^|(?:^|[(|:?*}])\\[bBA]")


@cache
def _asks_where(pattern: str) -> bool:
    """Return whether the end of a text may match where the whole does not."""
    return _PLACE_FIRST.search(pattern) is not None


@cache
def builtin_catalogue() -> Catalogue:
    """Load the catalogue that comes with the package."""
    data = pkgutil.get_data("prefect_ft.decide", _RESOURCE)
    assert data is not None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return Catalogue(_trusted(entry) for entry in yaml.load(data, loader))  # noqa: S506  (a safe loader)


def _trusted(entry: Mapping[str, Any]) -> Signature:
    """Take an entry of ours without checks: the tests have read it with `read_entry`."""
    return Signature(
        id=entry["id"],
        failure_class=entry["class"],
        pattern=entry["pattern"],
        role=entry.get("role", "root"),
        blame=entry.get("blame", "none"),
        recoverable=entry.get("recoverable"),
        hint=entry.get("hint", ""),
        source=entry.get("source", ""),
        example=entry["example"],
    )


def with_own(own: Sequence[Signature]) -> Catalogue:
    """Return a catalogue in which a user's own signatures come before ours.

    One of ours with the same id is replaced. Raises EntryError for an id that stands twice in `own`.
    """
    if not own:
        return builtin_catalogue()
    names = {signature.id for signature in own}
    ours = (signature for signature in builtin_catalogue() if signature.id not in names)
    return Catalogue((*own, *ours))
