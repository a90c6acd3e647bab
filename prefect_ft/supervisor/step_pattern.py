"""Finds the step in names that are not known, so that a pattern can be advised.

Pure text. Where the number may be anything else there is no pattern: with a wrong one a run resumes from a wrong state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_DAY = r"(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])"
_OF_OTHERS = (
    "rank", "shard", "part", "worker", "node", "gpu", "proc", "process", "v", "ver", "version", "run", "exp",
    "experiment", "trial", "fold", "seed", "job", "attempt", "train",
)  # fmt: skip
"""Words before a number that is no step."""

_NO_STEPS = tuple(
    re.compile(pattern)
    for pattern in (
        r"[0-9]+(?:[-_.:t][0-9]+){2,}",  # 2026-11-29_02-15-33, and the time alone
        rf"(?<![0-9]){_DAY}[-_t]?(?:[0-9]{{4}}|[0-9]{{6}})?(?![0-9])",
        r"[0-9]+h[0-9]+m[0-9]*",
        r"(?<![0-9])1[0-9]{9}(?![0-9])",  # seconds since the epoch
        r"[0-9]+\.[0-9]+",
        r"[0-9]+-of-[0-9]+",
        rf"(?<![a-z])(?:{'|'.join(_OF_OTHERS)})[-_=.]?[0-9]+",
        r"\.[a-z][a-z0-9]*$",  # .h5
    )
)


def step_pattern(names: Iterable[str]) -> str | None:
    """Return the pattern of several names that differ in one number, which may be a step; None: there is none."""
    split = [re.split("([0-9]+)", name) for name in names]
    first = split[0]
    if any(each[::2] != first[::2] for each in split):
        return None
    differing = [place for place in range(1, len(first), 2) if len({each[place] for each in split}) > 1]
    if len(differing) != 1 or any(_is_no_step(each, differing[0]) for each in split):
        return None
    return "".join([*first[: differing[0]], "{step}", *first[differing[0] + 1 :]])


def _is_no_step(split: list[str], place: int) -> bool:
    """Return whether the number at this place is part of a date, a rank, an extension or the like."""
    start = len("".join(split[:place]))
    end = start + len(split[place])
    matches = (match for no_step in _NO_STEPS for match in no_step.finditer("".join(split).lower()))
    return any(match.start() <= start and end <= match.end() for match in matches)
