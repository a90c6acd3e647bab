"""A run as it happens, for a view in another thread that may be late: its phases, and how their attempts ended.

The thread that executes the run tells it; nothing waits for the view, which follows in the same order at its own pace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from prefect_ft.observe import Replay
from prefect_ft.run import Run
from prefect_ft.supervisor import AttemptFailedError, StopRequest

QUIET_S = 1.0
"""How long a restart is left alone before it is shown: what shows it would share interpreter and cores with it."""


class Stage:
    """The attempts of one phase, in the order in which this process has executed them."""

    def __init__(self, name: str, changed: threading.Condition) -> None:
        """`changed` is shared by all that tells and follows one run."""
        self.name = name
        self._changed = changed
        self._ended: list[tuple[float, AttemptFailedError]] = []
        self._is_over = False
        self._error: BaseException | None = None

    def attempt_ended(self, error: AttemptFailedError) -> None:
        """Tell how an attempt ended that did not complete the phase, and what was decided about it."""
        with self._changed:
            self._ended.append((time.monotonic(), error))
            self._changed.notify_all()

    def over(self, error: BaseException | None) -> None:
        """Tell that there will be no further attempt; `error`: what kept the phase from an end of its own."""
        with self._changed:
            self._is_over, self._error = True, error
            self._changed.notify_all()

    def end_of(self, number: int) -> AttemptFailedError | None:
        """Wait for the end of an attempt, counted from 0 in this process; None: it has completed the phase.

        Raises what kept the phase from an end of its own.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or number < len(self._ended))
            if number < len(self._ended):
                ended_s, error = self._ended[number]
                left_s = ended_s + QUIET_S - time.monotonic()
                self._changed.wait_for(lambda: self._is_over, max(0.0, left_s))
                return error
            if self._error is not None:
                raise self._error
            return None


class Live:
    """One run's stages and end."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stages: list[Stage] = []
        self._is_over = False
        self._error: BaseException | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Tell of a phase that is being executed while entered."""
        stage = Stage(name, self._changed)
        with self._changed:
            self._stages.append(stage)
            self._changed.notify_all()
        try:
            yield stage
        except BaseException as error:
            stage.over(error)
            raise
        stage.over(None)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Tell of the run's end, whatever that is, when left."""
        try:
            yield
        except BaseException as error:
            self._end(error)
            raise
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            self._is_over, self._error = True, error
            self._changed.notify_all()

    def stages(self) -> Iterator[Stage]:
        """Yield the stages as they begin, until the run is over."""
        shown: list[Stage] = []
        while self._wait(lambda: self._is_over or len(shown) < len(self._stages)):
            if len(shown) == len(self._stages):
                return
            shown.append(self._stages[len(shown)])
            yield shown[-1]

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the run is over; return whether it is."""
        return self._wait(lambda: self._is_over, timeout_s)

    @property
    def is_over(self) -> bool:
        """Whether the run is not executed any more."""
        return self._is_over

    def _wait(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    @property
    def error(self) -> BaseException | None:
        """What ended the execution, if that was an error."""
        return self._error


class Begun(NamedTuple):
    """A run that a thread of this process executes, and what a view of it needs.

    `facts` are those since its beginning; `is_followed` is set once the view has begun.
    """

    run: Run
    live: Live
    stop: StopRequest
    facts: Replay
    is_followed: threading.Event


begun_run: ContextVar[Begun | None] = ContextVar("prefect_ft_begun_run", default=None)
"""What a flow run of this context is to follow; None: it executes a run itself."""
