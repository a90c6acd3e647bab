"""Lines that show progress: what was printed before them did not end the run.

Owns the reading of steps, epochs and bars. Two different places in a row are progress; a summary is not.
"""

from __future__ import annotations

import re

from prefect_ft.signatures import compiled

__all__ = ["PLACES", "Progress", "is_no_progress", "is_result", "place_of"]

_SOURCES = (
    r"(?i:(?:\b|_)(?:step|timestep|epoch|iter|iteration|batch|update|trial|episode|round)s?\b['\"]?[\s:=#/\[(|]{0,40}\d)",
    r"\d+/\d+ \[\d+:\d\d(?::\d\d)?<",
    r"\d[a-z]* \[\d+:\d\d(?::\d\d)?, +[\d.?]+\w*/",
    r"(?i:\bloss['\"]?[\s:=]{1,4}\d)",
)
PLACES = "|".join(_SOURCES)
"""Patterns of a line of progress, in the syntax of both RE2 and Python."""

_WITHIN = r"(?:(?:/\d+)?[\]\s|,:;\[(]{1,5}\d+(?=/\d))?"
"""What may follow the number of an epoch: the place within it, as in `Epoch [1/70][2760/2860]`."""
_STEP = re.compile(_SOURCES[0][:-3] + rf"(\d+(?:\.\d+)?{_WITHIN})(?![\d.%]))")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_BAR = re.compile(r"(?<!\d)(?!0/)(\d+)/(\d+) \[\d+:\d\d(?::\d\d)?<")
_COUNTER = re.compile(r"(?<![\d/])([1-9]\d*)[a-z]* \[\d+:\d\d(?::\d\d)?, +[\d.?]+\w*/")
"""A bar of which the end is not known."""
_ANY = re.compile(PLACES)
_LOSS = re.compile(r"(?i)\bloss['\"]?[\s:=]{1,4}(\d+(?:\.\d+)?(?:e-?\d+)?)")
_NOT_PROGRESS = re.compile(
    r"\s*\*|.{0,60}?(?:wandb: |File \")"
    r"|.*(?i:\b(?:sav(?:ed|ing)|checkpoint|resum(?:e|ing)|restor(?:ed|ing)|load(?:ed|ing)|"
    r"at (?:global )?(?:step|epoch|iter\w*)|"
    r"exception|failed|aborting|interrupted|stopp(?:ed|ing))\b)"
)
_SETTING = re.compile(
    r"(?i)(?:\b|_)(?:(?:max(?:imum)?|warm-?up)[ _-](?:\w+[ _-])?(?:epochs|iters|iterations|steps|timesteps)|"
    r"(?:num|number of|total)[ _-](?:\w+[ _-])?(?:epochs|optimi[sz]ation steps|train(?:ing)? steps))"
    r"['\"]?[\s:=]{1,4}\d+"
)
"""How many steps there will be, which names none that has been reached."""
_RESULT = compiled(
    r"(?i)(?:\b|_)(?:acc(?:uracy)?|auc|auroc|bleu|correct|dice|eer|f1|fid|kappa|loss|m?ap|m?iou|mae|mse|percentage|perplexity|"
    r"ppl|precision|psnr|recall|reward|rmse|rouge\w*|score|ssim|wer|cer)s?\b"
    r"(?:[^:=\d]{0,24}[:=]\s*[\[({'\"]{0,2}[-+]?\d|\s?\[[-+]?\d+\.\d)"
)
_ENDLESS, _REDRAWN = "?", 2
"""The end of a bar that has none, and how many of them a program may redraw as it exits: one cannot tell them apart."""
_COLUMNS = 400
_BAR_AT = "bar "


def is_no_progress(text: str) -> bool:
    """Return whether a line names a place without the run having reached it."""
    return _NOT_PROGRESS.match(text) is not None


def place_of(text: str) -> str | None:
    """Return the place that a line of progress names, `None` for any other line."""
    text = text[-_COLUMNS:] if "\r" in text else text[:_COLUMNS]
    if _ANY.search(text) is None or is_no_progress(text):
        return None
    steps = " ".join(_NUMBER.findall(" ".join(_STEP.findall(_SETTING.sub("", text)))))
    # a program that has failed may still print bars that are at their end
    if bars := [f"{at}/{end}" for at, end in _BAR.findall(text) if at != end]:
        return f"{_BAR_AT}{' '.join(filter(None, (steps, *bars)))}"
    if steps:
        return f"step {steps}"
    if counts := _COUNTER.findall(text):
        return f"{_BAR_AT}{' '.join(counts)}/{_ENDLESS}"
    losses = _LOSS.findall(text)
    return f"loss {' '.join(losses)}" if losses else None


def is_result(text: str) -> bool:
    """Return whether a line reports the value of a metric, as a program does that goes on or has come to its end."""
    return not text[:1].isspace() and _RESULT.search(text[:_COLUMNS]) is not None and not is_no_progress(text)


class Progress:
    """Counts the different places since the last finding; among bars, only those of the one that has moved most.

    A program redraws all of its bars as it exits.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._bars: dict[str, set[str]] = {}
        self._lines: set[str] = set()
        self.places = 0

    def see(self, text: str) -> int:
        """Take a line; return how many places have been seen."""
        place = place_of(text)
        if place is not None and not place.startswith(_BAR_AT) and len(self._lines) < 64:
            self._lines.add(f"{place} {' '.join(_LOSS.findall(text[:_COLUMNS]))}")
        if place is not None and place not in self._seen and len(self._seen) < 64:
            self._seen.add(place)
            if place.startswith(_BAR_AT):
                self._bars.setdefault(place.rpartition("/")[2], set()).add(place)
            bars = {end: len(seen) for end, seen in self._bars.items()}
            others = len(self._seen) - sum(bars.values())
            bars[_ENDLESS] = bars.get(_ENDLESS, 0) - _REDRAWN
            self.places = others + max(0, *bars.values())
        return self.places

    @property
    def losses(self) -> int:
        """How many of the places were different, or had a different loss, as within an epoch."""
        return len(self._lines)

    def clear(self) -> None:
        self._lines.clear()
        self._seen.clear()
        self._bars.clear()
        self.places = 0
