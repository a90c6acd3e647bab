"""The user's wish to stop: Ctrl-C or SIGTERM once ends the run cleanly, a second time at once.

Only a second signal does: who cancelled a flow run is told of by Prefect and, by SIGTERM, by its worker. And only
one that comes later: `timeout` signals its child and then the child's group, which is the child again.

Where an orchestrator is moved about by others, SIGTERM is no such wish: it leaves, and the run goes on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from prefect_ft.errors import LeaseLostError

ONE_WISH_S = 0.1
"""Signals so close together are one wish: more than `timeout` takes for its two, less than two presses of Ctrl-C."""


class StopRequest:
    """While entered, takes SIGINT and SIGTERM; `fileno()` is readable once a stop is wanted.

    Off the main thread Python delivers no signals; then nothing is taken and only `ask` counts.
    """

    def __init__(
        self,
        remember: Callable[[str, bool], None] | None = None,
        *,
        leaves_on_sigterm: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`remember` makes the wish outlive this process; see `record`.

        `leaves_on_sigterm`: at a SIGTERM whoever waits gives the run up, as it stands, to whoever comes next.
        """
        self._remember = remember
        self._now = now
        self._signalled_s: float | None = None
        self._is_settled = False
        self._leaves_on_sigterm = leaves_on_sigterm
        self.wanted: str | None = None
        """What asked for the stop, e.g. `SIGINT`."""
        self.wants_checkpoint = False
        """Whether a checkpoint is to be saved first."""
        self.lost: LeaseLostError | None = None
        """Set once the run belongs to somebody else: nothing may be done any more, not even stopping it."""
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[signal.Signals, Any] = {}

    def ask(self, source: str, checkpoint: bool = False) -> None:
        """Want the stop from now on, after a checkpoint or at once. Safe in a signal handler."""
        if self.wanted is None:
            self.wants_checkpoint = checkpoint
        self.wanted = self.wanted or source
        self._wake()

    def abandon(self, error: LeaseLostError) -> None:
        """Have whoever waits give up at once, with this error. Safe in a thread."""
        self.lost = error
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it is full, which is enough; or nobody waits any more
            os.write(self._write_end, b"!")

    def settle(self) -> None:
        """Let no further signal interrupt: what is left to do is to take down the end."""
        self._is_settled = True

    def record(self) -> None:
        """Make the wish, if there is one, outlive this process: a crash while stopping takes it back from none."""
        if self.wanted is not None and self._remember is not None:
            with contextlib.suppress(OSError):  # a full disk; then it ends with this process
                self._remember(self.wanted, self.wants_checkpoint)
                self._remember = None

    def fileno(self) -> int:
        return self._read_end

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._signalled) for number in (signal.SIGINT, signal.SIGTERM)
            }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None is a handler that was not set by Python
        self.close()

    def close(self) -> None:
        """Wake nobody any more; for one that was never entered. Idempotent."""
        ends = self._read_end, self._write_end
        self._read_end = self._write_end = -1  # the numbers may soon be somebody else's
        for end in ends:
            if end >= 0:
                os.close(end)

    def _signalled(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGTERM and self._leaves_on_sigterm:
            self.abandon(LeaseLostError("SIGTERM: it goes on as it stands, for whoever comes next"))
            return
        now_s = self._now()
        if self._signalled_s is None:
            self._signalled_s = now_s
        elif now_s - self._signalled_s >= ONE_WISH_S and not self._is_settled:
            raise KeyboardInterrupt
        self.ask(signal.Signals(number).name)
