"""Steps that a rank prints: how far it came, where it sends no heartbeat that says so. Pure.

A step must name one place in the whole training. A count that restarts in each epoch names many, and two
failures at the same count would look like one: so a count that falls, or is below the checkpoint that was resumed
from, is not a step.
"""

from __future__ import annotations

import re
from typing import Any

from prefect_ft.decide.classify.progress import is_no_progress
from prefect_ft.signatures import capturing

_OWN = capturing(
    r"(?i)(?:^|[\s\[|,({])[\"']?(?:global[_ ]?|train(?:er)?[/_ ]?)?(?:step|iter|iteration|num_updates)[\"']?"
    r"(?:\s{0,20}[:=]|\s)\s{0,12}[\"']?(\d{1,15})(?:$|[\s,:;|/\])}\"'])"
)
"""What trainers print of a step, as Megatron (`iteration  100/  5000 |`), nanoGPT (`iter 100: loss`), torchtitan
(`step: 10  loss:`), DeepSpeed (`step=10, skipped=0`) and fairseq (`num_updates': 200`) do."""

_LOCAL = re.compile(r"(?i)epoch|trial|fold|eval|valid|test")
"""Words in lines whose count may be of an epoch, or of something other than training."""

_MEASURED = re.compile(r"(?i)loss|\blr\b|learning.rate|grad|token|flops|mfu|sample|elapsed|skipped|\bwps\b")
"""Words beside a step of training, and not beside one of a script or of a plan."""

_COLUMNS = 400
_DIGITS = 15
_LINES = 12
"""How many of the lines that arrive together are read, from the end: earlier ones are outdated."""

_MARKS = ("tep", "ter", "TE", "num_updates")
"""Texts of which every line that is examined contains one."""


class StepLines:
    """Takes the output of one rank, in whole lines; says the last step of it."""

    def __init__(self, pattern: str | None = None, *, start: int | None = None) -> None:
        """`pattern` is a job's own (RE2, its first group is the step), which replaces the known patterns of trainers.

        `start` is the step that the attempt resumed from. Raises re2.error.
        """
        self._pattern = None if pattern is None else capturing(pattern)
        self._start = start or 0
        self._is_local = False
        self.step: int | None = None
        """The last step; None: none is known."""
        self.every: int | None = None
        """How far apart the last two were; None: there are not two."""

    def feed(self, text: str) -> None:
        """Take output."""
        if self._is_local:
            return
        for line in text.rstrip("\n").rsplit("\n", _LINES)[-_LINES:]:
            if (step := self._step_in(line[:_COLUMNS])) is not None:
                self._see(step)

    def _step_in(self, line: str) -> int | None:
        if self._pattern is not None:
            found: Any = self._pattern.search(line)
        elif not any(mark in line for mark in _MARKS):
            return None
        else:
            found = _OWN.search(line)
            if found is None or not _MEASURED.search(line) or _LOCAL.search(line) or is_no_progress(line):
                return None
        number = found[1] if found is not None else None
        return int(number) if number and number.isdecimal() and len(number) <= _DIGITS else None

    def _see(self, step: int) -> None:
        if step < self._start or (self.step is not None and step < self.step):
            self._is_local, self.step, self.every = True, None, None
        elif self.step is None:
            self.step = step
        elif step > self.step:
            self.step, self.every = step, step - self.step
