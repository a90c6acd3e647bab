"""Requests to stop: the first Ctrl-C or SIGTERM ends the run cleanly, the second one at once.

Only a second signal does: a cancelled flow run is announced by Prefect and, by SIGTERM, by its worker as well. And only
a later one: `timeout` signals its child and then the child's group, which includes the child again.

A time limit that a caller has set on this process by SIGALRM, as Prefect does for a flow's `timeout_seconds`, is
a request to stop too: what its handler raises waits until the run has been stopped.

Where orchestrators are moved between machines, SIGTERM is not such a request: the orchestrator exits, and the run
continues. In an allocation of a scheduler SIGTERM announces its end: the run is handed over to the next one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable
from enum import IntEnum
from types import FrameType
from typing import Any

from prefect_ft.errors import LeaseLostError

ONE_REQUEST_S = 0.1
"""Signals this close together are one request: more than between the two of `timeout`, less than two Ctrl-C."""


TIMED_OUT = "timed out in Prefect"
"""The source of a stop requested by Prefect's `timeout_seconds`."""


class HandOver(IntEnum):
    """What is known of the end of a tenure for which a run is handed over."""

    DUE = 0
    """Its time is up soon, or it has grown."""
    PART = 1
    """Others are ending a part of it: ranks can still save."""
    BEGUN = 2
    """Others are ending it: ranks can still save."""
    OVER = 3
    """It has ended, with all that ran in it."""


class StopRequest:
    """While entered, takes SIGINT, SIGTERM and a caller's SIGALRM; `fileno()` is readable once a stop is wanted.

    Off the main thread Python delivers no signals; then nothing is taken and only `ask` counts.
    """

    def __init__(
        self,
        remember: Callable[[str, bool], None] | None = None,
        *,
        leaves_on_sigterm: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`remember` stores the request durably; see `record`.

        `leaves_on_sigterm`: after a SIGTERM this orchestrator leaves the run, as it is, to the next one.
        """
        self._remember = remember
        self._recording = threading.Lock()
        self._now = now
        self._signalled_s: float | None = None
        self._is_settled = False
        self._leaves_on_sigterm = leaves_on_sigterm
        self.hands_over_on_sigterm = False
        """Whether SIGTERM announces the end of the tenure that this process is in."""
        self.was_terminated = False
        """Whether SIGTERM has announced that."""
        self._hand_over: tuple[str, HandOver] | None = None
        self._request: tuple[str, bool] | None = None
        """One value, so that the requests of two threads are not mixed."""
        self.lost: LeaseLostError | None = None
        """Set once the run belongs to another orchestrator: nothing may be done any more, not even stopping it."""
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[signal.Signals, Any] = {}
        self._time_limit: BaseException | None = None
        """What the caller's handler for SIGALRM raised."""

    def ask(self, source: str, checkpoint: bool = False) -> None:
        """Request a stop, after a checkpoint or at once. Safe in a signal handler."""
        if self._request is None:
            self._request = source, checkpoint
        self._wake()

    def hand_over(self, why: str, ending: HandOver = HandOver.DUE) -> None:
        """Request a hand-over to the next tenure, after a checkpoint. Thread-safe. A request to stop wins."""
        if self._hand_over is None or ending > self._hand_over[1]:
            self._hand_over = why, ending
        self._wake()

    def take_over(self) -> None:
        """Withdraw the hand-over: the run has its next tenure."""
        self._hand_over = None
        if self._request is None and self.lost is None:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._read_end, 4096):
                    pass

    @property
    def hands_over(self) -> str | None:
        """Why the run is to be handed over; None: it is not, or it is to stop."""
        return self._hand_over[0] if self._hand_over is not None and self._request is None else None

    @property
    def tenure_is_over(self) -> bool:
        """Whether what ran in the tenure has ended with it."""
        return self._hand_over is not None and self._hand_over[1] is HandOver.OVER

    @property
    def tenure_is_taken(self) -> bool:
        """Whether others end the tenure, or have: why is to be asked."""
        return self._hand_over is not None and self._hand_over[1] >= HandOver.BEGUN

    @property
    def part_is_taken(self) -> bool:
        """Whether others end a part of the tenure alone."""
        return self._hand_over is not None and self._hand_over[1] is HandOver.PART

    @property
    def wanted(self) -> str | None:
        """What asked for the stop, e.g. `SIGINT`."""
        return self._request[0] if self._request is not None else None

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a checkpoint is to be saved first."""
        return self._request is not None and self._request[1]

    def abandon(self, error: LeaseLostError) -> None:
        """Make the waiting thread give up at once, with this error. Thread-safe."""
        self.lost = error
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the pipe is full, which is enough; or it is closed
            os.write(self._write_end, b"!")

    def settle(self) -> None:
        """Ignore further signals and requests: only the end has still to be recorded."""
        with self._recording:
            self._is_settled = True

    def record(self) -> None:
        """Store the request, if there is one, durably: a crash while stopping must not undo it.

        Thread-safe, but not for a signal handler. Nothing is written any more when this, or `settle`, returns.
        """
        with self._recording:
            if self._request is not None and self._remember is not None and not self._is_settled:
                with contextlib.suppress(OSError):  # a full disk; then it ends with this process
                    self._remember(*self._request)
                    self._remember = None

    def fileno(self) -> int:
        return self._read_end

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._take(signal.SIGINT, self._signalled)
            self._take(signal.SIGTERM, self._signalled)
            if callable(signal.getsignal(signal.SIGALRM)):
                self._take(signal.SIGALRM, self._alarmed)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Restore the handlers; raises what the caller's time limit raised, unless another error is in flight."""
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None is a handler that was not set by Python
        self.close()
        if self._time_limit is not None and error is None:
            raise self._time_limit

    def _take(self, number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> None:
        self._before[number] = signal.signal(number, handler)

    def close(self) -> None:
        """Close the pipe; for a request that was never entered. Idempotent."""
        ends = self._read_end, self._write_end
        self._read_end = self._write_end = -1  # the numbers may be reused
        for end in ends:
            if end >= 0:
                os.close(end)

    def _signalled(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGTERM and self.hands_over_on_sigterm:
            self.was_terminated = True
            self.hand_over("SIGTERM: the allocation ends")
            return
        if number == signal.SIGTERM and self._leaves_on_sigterm:
            self.abandon(LeaseLostError("SIGTERM: this orchestrator leaves, and the run continues"))
            return
        now_s = self._now()
        if self._signalled_s is None:
            self._signalled_s = now_s
        elif now_s - self._signalled_s >= ONE_REQUEST_S and not self._is_settled:
            raise KeyboardInterrupt
        self.ask(signal.Signals(number).name)

    def _alarmed(self, number: int, frame: FrameType | None) -> None:
        try:
            self._before[signal.SIGALRM](number, frame)
        except BaseException as error:
            self._time_limit = error
            self.ask(TIMED_OUT if isinstance(error, CancelledError) else signal.Signals(number).name)
