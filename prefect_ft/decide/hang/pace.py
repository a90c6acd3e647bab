"""What a phase's stages take: learnt from this run's and earlier runs' pauses between two signs of progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prefect_ft.decide.hang.facts import Limits

KEPT = 100
"""How many pauses of each stage are kept: the newest."""

ENOUGH = 3
"""The fewest pauses from which a limit is learnt."""

DEVIATIONS = 8.0
"""A learnt limit is this many standard deviations above the median, and at least twice the median."""

SIGMA = 1.4826
"""From the median absolute deviation to the standard deviation of what is normally distributed."""


class Pace:
    """Pauses by stage, in seconds. Only those that ended: one that was cut short by a kill is not counted."""

    def __init__(self, known: Iterable[Mapping[str, Sequence[float]]] = ()) -> None:
        """`known` are earlier attempts' `pauses`."""
        self._pauses: dict[str, list[float]] = {}
        self._learnt: dict[str, float | None] = {}
        for pauses in known:
            for stage, values in pauses.items():
                self._pauses[stage] = [*self._pauses.get(stage, ()), *values][-KEPT:]

    def note(self, stage: str, pause_s: float) -> None:
        """Note a pause that has ended."""
        kept = self._pauses.setdefault(stage, [])
        kept.append(round(pause_s, 3))
        del kept[:-KEPT]
        self._learnt.pop(stage, None)

    @property
    def pauses(self) -> dict[str, list[float]]:
        """All that is known, for later attempts."""
        return {stage: list(values) for stage, values in self._pauses.items() if values}

    def limit_s(self, stage: str, limits: Limits) -> float:
        """Return how long a rank may be silent in a stage: as given, else as learnt, never below the floor."""
        given = limits.given(stage)
        if given is not None:
            return given
        if stage not in self._learnt:
            self._learnt[stage] = _learnt(self._pauses.get(stage, ()))
        learnt = self._learnt[stage]
        if learnt is None:
            return limits.hang_s
        return max(learnt, limits.hang_s if limits.floor_s is None else limits.floor_s)


def _learnt(pauses: Sequence[float]) -> float | None:
    if len(pauses) < ENOUGH:
        return None
    middle, spread = middle_and_spread(pauses)
    return max(2 * middle, middle + DEVIATIONS * SIGMA * spread)


def middle_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return median and median absolute deviation."""
    middle = median(values)
    return middle, median([abs(value - middle) for value in values])


def median(values: Sequence[float]) -> float:
    """Return the median of at least one value."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
