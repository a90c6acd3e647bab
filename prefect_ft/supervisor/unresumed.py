"""Warns of an attempt that begins anew although it was given a checkpoint of the phase: its work is repeated.

Seen by the steps of what it saves, and by the steps that its ranks tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import PurePath

from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import NOT_RESUMED, AttemptLine, CheckpointLine, IncidentLine
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.warner import Warner
from prefect_ft.worker.checkpoints.names import UsualNames


class Unresumed:
    """Watches the attempts of one phase."""

    def __init__(self, warner: Warner, journal: MemoryJournal) -> None:
        self._warner, self._journal = warner, journal
        self._watched = 0
        """The attempt whose steps are watched."""
        self._below: int | None = None
        """The step below which they say that it has begun anew; None: they do not say it."""

    def saved(self, line: CheckpointLine) -> None:
        """Take a checkpoint that has been recorded."""
        start = self._start_of(line.attempt) if line.attempt else None
        if start is None or start.resume_step is None or not 0 < line.step < start.resume_step:
            return
        is_aside = UsualNames().is_aside(PurePath(line.path or "").name)  # its step may be long past
        is_own = line.written_t > start.t and not line.counted and not is_aside
        if is_own and not self._counts_anew():
            self._warn(start.attempt, start.resume_step, f"has saved step {line.step} since")

    def told(self, attempt: Attempt) -> None:
        """Take note of the steps that ranks have told: two of them, since the first may be told before loading."""
        if attempt.number != self._watched:
            self._watched, self._below = attempt.number, self._lowest_of(attempt.number)
        first, last = attempt.first_step, attempt.last_step
        if self._below is not None and first is not None and last is not None and first < last < self._below:
            self._warn(attempt.number, self._below, f"is at step {last} now")
            self._below = None

    def _warn(self, attempt: int, given: int, shows: str) -> None:
        if not self._warner.has_warned(NOT_RESUMED, attempt):
            text = (
                f"attempt {attempt} was given step {given} and {shows}: it seems to have begun anew, and repeats "
                "that work. The command has to load PREFECT_FT_RESUME_FROM, or get it by resume_args "
                "(docs/script-contract.md#resume)."
            )
            self._warner.warn(NOT_RESUMED, text, attempt)

    def _lowest_of(self, attempt: int) -> int | None:
        """Return the step that an attempt was given, if ranks came to it before; else their count may be another.

        So it is where they came far beyond all that was saved: they may count the batches of each epoch.
        """
        start = self._start_of(attempt)
        if start is None or start.resume_step is None:
            return None
        lines = self._journal.lines
        came_to = max((line.last_step or 0 for line in lines if isinstance(line, IncidentLine)), default=0)
        highest = max(line.step for line in lines if isinstance(line, CheckpointLine))
        return start.resume_step if start.resume_step <= came_to <= 2 * highest else None

    def _start_of(self, attempt: int | None) -> AttemptLine | None:
        """Return the line of an attempt that was given a checkpoint which an earlier one of the phase has saved."""
        lines = self._journal.lines
        start = next(
            (line for line in lines if isinstance(line, AttemptLine) and line.attempt == attempt), None
        )
        if start is None or start.resume_step is None:
            return None
        is_own = any(
            isinstance(line, CheckpointLine)
            and line.step == start.resume_step
            and not line.counted
            and (line.attempt or start.attempt) < start.attempt
            for line in lines
        )
        return start if is_own else None

    def _counts_anew(self) -> bool:
        """Return whether steps of checkpoints fall within an attempt, as those that are counted in each epoch do."""
        began_t = {line.attempt: line.t for line in self._journal.lines if isinstance(line, AttemptLine)}
        saves = [
            line
            for line in self._journal.lines
            if isinstance(line, CheckpointLine) and line.written_t > began_t.get(line.attempt or 0, 0.0)
        ]
        return any(_falls([*each]) for _, each in groupby(saves, lambda line: line.attempt))


def _falls(saves: Sequence[CheckpointLine]) -> bool:
    steps = [line.step for line in sorted(saves, key=lambda line: line.written_t)]
    return any(after < before for before, after in pairwise(steps))
