"""The text that every match of a pattern contains: the key by which most of a log is skipped.

Owns the reading of a pattern's outline, and nothing else of its meaning. Where the outline is not
understood the answer is `None`, which is always safe: the pattern is then tried everywhere.
"""

from __future__ import annotations

import re

__all__ = ["GAP", "keys_of", "texts_of"]

_SHORTEST, _SHORTEST_WORD, _SHORTEST_NUMBER = 3, 5, 6
_COMMON = frozenset(
    (
        "abort", "address", "and", "azure", "batch", "bus", "core", "cpu", "cuda", "data", "debug", "device",
        "down", "epoch", "errno", "error", "errors", "exception", "exit", "exited", "fail", "failed",
        "failure", "file", "for", "found", "gpu", "grad", "gradient", "http", "inf", "info", "invalid",
        "job", "kernel", "killed", "launch", "link", "loss", "memory", "missing", "model", "nan", "node",
        "not", "output", "port", "probe", "process", "queue", "raise", "rank", "retry", "return", "scale",
        "signal", "size", "state", "status", "step", "stop", "stopped", "stops", "tensor", "term_", "time",
        "timeout", "total", "tpu", "train", "training", "version", "warn", "warning", "with", "worker",
    )
)  # fmt: skip
"""Words that occur in the logs of healthy runs: alone they mean nothing."""

_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_REPEAT = re.compile(r"[*?+]|\{(\d+)(?:,\d*)?\}")
_PLAIN = re.compile(r"[^\\()\[\]{}.*+?^$|]+")
_FLAGS = re.compile(r"\?(?:P?<\w+>|([a-zA-Z]*)(?:-[a-zA-Z]+)?([:)]))")
_NOT_READ = re.compile(r"\[:\^?[a-z]+:\]|\\[QpPxC]|\(\?[a-zA-Z]*x")
_IN_A_ROW = 2
"""How many common words a key has at most: each may double the states of an automaton over long lines."""
GAP = r"[^\n\r]*"
"""Stands in the keys that are made of common words alone."""

_Choice = tuple[str, ...]
"""Texts of which one must occur."""

_Outlined = list[list[_Choice]]
"""The alternatives of a pattern, each with the choices that it requires, in order."""


def keys_of(pattern: str) -> list[str] | None:
    """Return patterns of which one is in every line that `pattern` matches; `None` if there are none.

    A key is a specific text; where an alternative has none, the rarest of its common ones in their order.
    """
    reading = _Reading(pattern)
    if (alternatives := reading.outline()) is None:
        return None
    keys = [key for choices in alternatives for key in _keys(choices)]
    return [f"(?i:{key})" for key in keys] if reading.folds else keys


def texts_of(pattern: str) -> list[str]:
    """Return texts of which one is in every line that `pattern` matches, in some case; none if it requires none."""
    alternatives = _Reading(pattern).outline() or []
    return [text for choices in alternatives for text in max(choices, key=_worth)]


def _keys(choices: list[_Choice]) -> list[str]:
    best = max(choices, key=_worth)
    if all(map(_is_specific, best)):
        return [re.escape(text) for text in best]
    rarest = sorted(sorted(range(len(choices)), key=lambda at: _worth(choices[at]))[-_IN_A_ROW:])
    return [GAP.join(f"(?:{'|'.join(map(re.escape, choices[at]))})" for at in rarest)]


def _worth(choice: _Choice) -> tuple[bool, int, int]:
    return all(map(_is_specific, choice)), min(map(len, choice)), -len(choice)


def _is_specific(text: str) -> bool:
    word = text.strip(" :=,.'\"()[]").lower()
    if word.isdigit():
        return len(word) >= _SHORTEST_NUMBER
    is_short = len(word) < (_SHORTEST_WORD if word.isalpha() and not text.strip().isupper() else _SHORTEST)
    return not is_short and word not in _COMMON


class _Reading:
    """Walks over a pattern once."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.at = 0
        self.folds = re.search(r"\(\?[a-hj-zA-Z]*i", pattern) is not None
        """Whether any part may match in both cases."""

    def outline(self) -> _Outlined | None:
        """Read the whole pattern; `None` for one that is not understood, or that requires no text."""
        if _NOT_READ.search(self._pattern):
            return None
        try:
            alternatives = self.alternatives()
        except (IndexError, ValueError, RecursionError):
            return None
        return alternatives if self.at == len(self._pattern) and all(alternatives) else None

    def alternatives(self) -> _Outlined:
        found = [self._sequence()]
        while self._peek() == "|":
            self.at += 1
            found.append(self._sequence())
        return found

    def _peek(self) -> str:
        return self._pattern[self.at : self.at + 1]

    def _sequence(self) -> list[_Choice]:
        """Collect what the parts of a sequence require."""
        found: list[_Choice] = []
        run = ""
        while self._peek() not in ("", "|", ")"):
            literal, inner = self._part()
            least = self._least_repeats()
            if literal is not None and least == 1:
                run += literal
                continue
            found.append((run + (literal or "") if least else run,))
            run = ""
            if inner and least:
                found.extend(inner)
        found.append((run,))
        return [choice for choice in found if min(map(len, choice)) > 1]

    def _part(self) -> tuple[str | None, list[_Choice]]:
        """Take one part: its literal text ("" for a place, `None` for anything), what it requires."""
        if plain := _PLAIN.match(self._pattern, self.at):
            is_repeated = plain.end() - self.at > 1 and _REPEAT.match(self._pattern, plain.end())
            start, self.at = self.at, plain.end() - (1 if is_repeated else 0)
            return self._pattern[start : self.at], []
        char = self._peek()
        self.at += 1
        if char == "(":
            return self._group()
        if char == "[":
            return self._class(), []
        if char == "\\":
            return self._escape(), []
        if char in "^$":
            return "", []
        return (None if char == "." else char), []  # a bracket that opens nothing is itself

    def _group(self) -> tuple[str | None, list[_Choice]]:
        if (flags := _FLAGS.match(self._pattern, self.at)) is not None:
            self.at = flags.end()
            if flags[2] == ")":
                return "", []
        elif self._peek() == "?":
            raise ValueError
        inner = self.alternatives()
        if self._peek() != ")":
            raise ValueError
        self.at += 1
        if len(inner) == 1:
            return None, inner[0]
        if not all(inner):
            return None, []
        best = (max(choices, key=_worth) for choices in inner)
        return None, [tuple(dict.fromkeys(text for choice in best for text in choice))]

    def _escape(self) -> str | None:
        char = self._pattern[self.at]
        self.at += 1
        if char in "bBAz":
            return ""
        if char in _ESCAPED:
            return _ESCAPED[char]
        return None if char.isalnum() else char

    def _class(self) -> str | None:
        """Take a class of characters; one letter in both cases is that letter."""
        start = self.at
        self.at += self._peek() == "^"
        self.at += self._peek() == "]"
        while self._pattern[self.at] != "]":
            self.at += 2 if self._pattern[self.at] == "\\" else 1
        self.at += 1
        members = self._pattern[start : self.at - 1]
        if len(members) == 2 and members[0].isalpha() and members[0].lower() == members[1].lower():
            self.folds = True
            return members[0]
        return None

    def _least_repeats(self) -> int:
        """Return how often the part must occur; 1 for exactly once, 2 for once or more."""
        if (repeat := _REPEAT.match(self._pattern, self.at)) is None:
            return 1
        self.at = repeat.end()
        self.at += self._peek() == "?"
        if repeat[0] in "*?" or repeat[1] == "0":
            return 0
        return 2
