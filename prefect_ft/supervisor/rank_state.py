"""One rank of an attempt, as its agent reports it, and how far ranks had come. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from prefect_ft.decide.classify import LogScanner
from prefect_ft.decide.step_lines import StepLines
from prefect_ft.model import Stage

MOST_APART = 10
"""Steps between two that are reported, above which the last one does not say where a rank failed."""


@dataclass(slots=True)
class RankState:
    """One rank, as its agent reported it. `ended_ns` is CLOCK_BOOTTIME on the agent's machine."""

    worker: int
    exit_code: int | None = None
    signal: int | None = None
    ran_out: bool = False
    """Whether it was killed because its container's memory was used up."""
    ended_ns: int | None = None
    was_stopped: bool = False
    """Whether it ended because the attempt was being ended: how it ended then says nothing about it."""
    step: int | None = None
    every: int | None = None
    """The distance between the steps that it reports."""
    stage: Stage | None = None
    stage_step: int | None = None
    output: LogScanner = field(default_factory=LogScanner)
    """What its output has said so far; line numbers count from its beginning."""
    heard: int = 0
    """Up to which offset that is."""
    sample: str | None = None
    """What it said last that a step is made of."""
    printed: StepLines = field(default_factory=StepLines)
    """The steps in its output, as long as it reports none."""

    def hear(self, offset: int, text: str) -> None:
        """Take output, so far as it is news."""
        data = text.encode("utf-8", "replace")  # as long as it was: a byte that was no UTF-8 is one again
        news = data[max(0, self.heard - offset) :]
        self.output.feed(news)
        if self.step is None:
            self.printed.feed(news.decode("utf-8", "replace"))
        self.heard = max(self.heard, offset + len(data))

    @property
    def failed(self) -> bool:
        return not self.was_stopped and (self.signal is not None or bool(self.exit_code))

    @property
    def succeeded(self) -> bool:
        return not self.was_stopped and self.exit_code == 0


def reached(failed: RankState | None, ranks: Sequence[RankState]) -> tuple[int, int] | None:
    """Return the last step of the failed rank, else the highest of any, and the distance between those reported.

    None where no rank came to any, or where they are reported too rarely to say where it failed.
    """
    of_failed = [] if failed is None else [failed]
    steps = _reported(of_failed) or _reported(ranks) or _printed(of_failed) or _printed(ranks)
    step, every = max(steps, key=lambda each: (each[0], each[1] is not None), default=(0, None))
    return None if every is None or every > MOST_APART else (step, every)


_Reached = tuple[int, int | None]
"""A step, and the distance between those that are reported."""


def _reported(ranks: Iterable[RankState]) -> list[_Reached]:
    return [(state.step, state.every) for state in ranks if state.step is not None]


def _printed(ranks: Iterable[RankState]) -> list[_Reached]:
    found = [state.printed for state in ranks]
    return [(steps.step, steps.every) for steps in found if steps.step is not None]
