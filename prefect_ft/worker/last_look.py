"""The last look at an attempt's checkpoints, once no writer is left."""

from __future__ import annotations

from typing import Callable, Dict, Optional

from prefect_ft.worker.checkpoint_watch import CheckpointWatch
from prefect_ft.worker.loop import Loop

TIMEOUT_S = 5.0
"""How long the end of an attempt waits for this look; a file system may hang."""


class LastLook:
    """`on_over()` is called at its end, and when it has taken too long."""

    def __init__(self, checkpoints: CheckpointWatch, loop: Loop, on_over: Callable[[], None]) -> None:
        self._checkpoints, self._loop, self._on_over = checkpoints, loop, on_over
        self._number = 0
        """The number of its question."""
        self.skipped: Optional[Dict[str, str]] = None
        """What it could not verify, and why; None: it has not finished."""

    def begin(self, *, complete: bool) -> None:
        """Begin the look; `complete`: all ranks have completed, so what they saved need not settle."""
        self.skipped = None
        self._number = self._checkpoints.look(complete)
        self._loop.drop("look")
        self._loop.after("look", TIMEOUT_S, self._on_over)

    def on_looked(self, number: int, skipped: Dict[str, str]) -> None:
        """Note that the answer to this question has been reported, and what could not be verified."""
        if number >= self._number:
            self.skipped = skipped
            self._loop.drop("look")
            self._on_over()
