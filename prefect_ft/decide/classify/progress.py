"""Lines in which a run gets on: what was said before them was no end.

Owns the reading of steps, epochs and bars. Two different places in a row are progress; a summary is none.
"""

from __future__ import annotations

import re

__all__ = ["PLACES", "Progress", "is_no_progress", "place_of"]

_SOURCES = (
    r"(?i:(?:\b|_)(?:step|epoch|iter|iteration|batch|update|trial)s?\b['\"]?[\s:=#/\[(]{0,12}\d)",
    r"\d+/\d+ \[\d+:\d\d(?::\d\d)?<",
    r"(?i:\bloss['\"]?[\s:=]{1,4}\d)",
)
PLACES = "|".join(_SOURCES)
"""What stands in a line of progress, in RE2 and in Python's own syntax."""

_STEP = re.compile(_SOURCES[0][:-3] + r"(\d+(?:\.\d+)?))")
_BAR = re.compile(r"(?<!\d)(?!0/)(\d+)/(\d+) \[\d+:\d\d(?::\d\d)?<")
_ANY = re.compile(PLACES)
_LOSS = re.compile(r"(?i)\bloss['\"]?[\s:=]{1,4}(\d+(?:\.\d+)?(?:e-?\d+)?)")
_NOT_PROGRESS = re.compile(
    r"\s*(?:wandb:|File \"|\*)"
    r"|.*(?i:\b(?:sav(?:ed|ing)|checkpoint|resum(?:e|ing)|restor(?:ed|ing)|load(?:ed|ing)|"
    r"at (?:global )?(?:step|epoch|iter\w*)|"
    r"exception|failed|aborting|interrupted|stopp(?:ed|ing))\b)"
)
_COLUMNS = 400


def is_no_progress(text: str) -> bool:
    """Return whether a line names a place for another reason than that the run has come there."""
    return _NOT_PROGRESS.match(text) is not None


def place_of(text: str) -> str | None:
    """Return where a run says that it is, `None` for a line that says no such thing."""
    text = text[-_COLUMNS:] if "\r" in text else text[:_COLUMNS]
    if _ANY.search(text) is None or is_no_progress(text):
        return None
    if steps := _STEP.findall(text):
        return f"step {' '.join(steps)}"
    # a program that has failed may still print bars that are at their end
    if bars := [at for at, end in _BAR.findall(text) if at != end]:
        return f"bar {' '.join(bars)}"
    losses = _LOSS.findall(text)
    return f"loss {' '.join(losses)}" if losses else None


class Progress:
    """Counts the different places that have been seen since something was said."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def see(self, text: str) -> int:
        """Take a line; return how many places in all."""
        place = place_of(text)
        if place is not None and len(self._seen) < 64:
            self._seen.add(place)
        return len(self._seen)

    @property
    def places(self) -> int:
        return len(self._seen)

    def clear(self) -> None:
        self._seen.clear()
