"""The last look at what an attempt has saved: when nobody writes any more, or ahead of the order to stop."""

from __future__ import annotations

from typing import Callable, Dict, Optional

from prefect_ft.worker.checkpoint_watch import CheckpointWatch
from prefect_ft.worker.loop import Loop, now_s

TIMEOUT_S = 5.0
"""How long the end of an attempt waits for it; a file system may hang."""

LASTS_S = 0.5
"""How long a look that was begun ahead of the stop is as good as one after it."""


class LastLook:
    """`on_over()` is called when it is over, and when it has taken too long."""

    def __init__(self, checkpoints: CheckpointWatch, loop: Loop, on_over: Callable[[], None]) -> None:
        self._checkpoints, self._loop, self._on_over = checkpoints, loop, on_over
        self._number = 0
        """The number of its question."""
        self._ahead_s: Optional[float] = None
        """When it was begun, if that was ahead of the stop."""
        self.passed_over: Optional[Dict[str, str]] = None
        """What it could not verify, and why; None: it has not come to its end."""

    def forget(self) -> None:
        """Let an attempt begin that saves anew."""
        self._ahead_s = None

    def begin_ahead(self) -> None:
        """Begin it before the order to stop, because nobody is left who could write. Idempotent."""
        if self._ahead_s is None:
            self._ahead_s = now_s()
            self._ask(settled=False)

    def begin(self, *, complete: bool) -> None:
        """Begin it now, unless that was done a moment ago; `complete`: everybody has come to a good end."""
        ahead_s, self._ahead_s = self._ahead_s, None
        if complete or ahead_s is None or now_s() - ahead_s > LASTS_S:
            self._ask(settled=complete)
        self._loop.drop("look")
        if self.passed_over is None:
            self._loop.after("look", TIMEOUT_S, self._on_over)
        else:
            self._on_over()

    def _ask(self, *, settled: bool) -> None:
        self.passed_over = None
        self._number = self._checkpoints.look(settled)

    def looked(self, number: int, passed_over: Dict[str, str]) -> None:
        """Take note that the answer to this question has been reported, and of what could not be verified."""
        if number >= self._number:
            self.passed_over = passed_over
            self._loop.drop("look")
            self._on_over()
