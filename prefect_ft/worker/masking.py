"""Masking of secrets in text, byte for byte, so that offsets stay valid. Pure.

What is masked at a place depends only on the text within `reach` of it: however text is split, and from
wherever it is read again, it is masked as the whole would be.
"""

from __future__ import annotations

from typing import AnyStr, Iterable, List, Sequence, Tuple

MIN_LENGTH = 4
"""Characters; shorter values occur in any text, and masking them would only garble it."""


class Secrets:
    """Values that must not be shown. Each line of a value of several lines is a secret."""

    def __init__(self, values: Iterable[str]) -> None:
        lines = {line.strip("\r") for value in values for line in value.split("\n")}
        self.words: Tuple[str, ...] = tuple(sorted(line for line in lines if len(line) >= MIN_LENGTH))
        self._bytes = tuple(word.encode("utf-8", "surrogateescape") for word in self.words)
        self.reach = max(map(len, self._bytes), default=1) - 1
        """How many bytes before and after a place may decide whether it is masked."""

    def mask(self, data: bytes) -> bytes:
        """Return output with asterisks in place of secrets."""
        masked = bytearray(data)
        for start, end in _covered(data, self._bytes):
            masked[start:end] = b"*" * (end - start)
        return bytes(masked)

    def mask_text(self, text: str) -> str:
        """Return text with an asterisk for each of their bytes in UTF-8; lone surrogates are undecodable bytes."""
        parts, at = [], 0
        for start, end in _covered(text, self.words):
            parts += [text[at:start], "*" * len(text[start:end].encode("utf-8", "surrogateescape"))]
            at = end
        return "".join([*parts, text[at:]])


def _covered(text: AnyStr, words: Sequence[AnyStr]) -> List[Tuple[int, int]]:
    """Return the stretches covered by words, in order; words may overlap each other and themselves."""
    found: List[Tuple[int, int]] = []
    for word in words:
        at = text.find(word)
        while at >= 0:
            found.append((at, at + len(word)))
            at = text.find(word, at + 1)
    joined: List[Tuple[int, int]] = []
    for start, end in sorted(found):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined
