"""The thread beside the function: learns that the iteration has ended, and checks whether this rank progresses.

It polls for the store's alert where the kernel signals the main thread at once, and blocks on it
where it does not. Owns the time-outs of this rank, and the abort where the main thread cannot be interrupted.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from typing import Callable, Optional

from prefect_ft.inprocess.client import Connection
from prefect_ft.inprocess.errors import StoreLostError
from prefect_ft.inprocess.interrupt import Interrupter, has_come
from prefect_ft.inprocess.killer import Killer
from prefect_ft.inprocess.progress import Progress

LOOK_S = 0.1
"""The polling period: if the watches of all ranks woke up at every alert, they would take the processors from the
main threads."""

STUCK_S = 0.08
"""How long the main thread may take to leave before the abort hooks are called for it, in this thread."""

LEAD_S = 0.02
"""How long to leave the kernel's signal to the main thread: this thread would only take the interpreter, or a
core, away from it."""

AGAIN_S = 1.0
"""How long until the exception is raised in the main thread again."""

MAX_TICK_S = 1.0

NEVER = 1 << 62
"""An iteration above all others: all of them have ended."""


class Watch:
    """The thread, from `start` until `stop`. Time-outs are seconds; None: there is none."""

    def __init__(
        self,
        rank: int,
        alert: Connection,
        interrupter: Interrupter,
        progress: Progress,
        killer: Optional[Killer],
        *,
        soft_s: Optional[float],
        hard_s: Optional[float],
        abort: Callable[[int], None],
    ) -> None:
        """`abort(iteration)` is called when the main thread does not leave that iteration."""
        self._rank, self._alert, self._interrupter = rank, alert, interrupter
        self._progress, self._killer = progress, killer
        self._soft_s, self._hard_s, self._abort = soft_s, hard_s, abort
        self._tick_s = min(
            MAX_TICK_S, *(limit / 10 for limit in (soft_s, hard_s) if limit is not None), MAX_TICK_S
        )
        self._pressed_s = self._ended_s = self._due_s = 0.0
        self._reported = self._aborted = -1
        self._wake_read, self._wake_write = os.pipe()
        self._allow(time.monotonic())
        self._thread = threading.Thread(target=self._run, name="prefect-ft-inprocess", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, unless it hangs in an abort hook."""
        os.write(self._wake_write, b"\0")
        self._thread.join(MAX_TICK_S)
        if not self._thread.is_alive():
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _run(self) -> None:
        stop = select.poll()
        stop.register(self._wake_read, select.POLLIN)
        poll, looks = stop, self._interrupter.has_kernel_signal
        if not looks:
            poll = select.poll()
            poll.register(self._alert.socket, select.POLLIN)
            poll.register(self._wake_read, select.POLLIN)
        hears = True
        while True:
            ready = dict(poll.poll(1000 * self._sleep_s(looks)))
            if self._wake_read in ready:
                return
            if hears and (ready or (looks and has_come(self._alert.socket))):
                self._ended_s = time.monotonic()
                if looks and stop.poll(1000 * LEAD_S):
                    return
                hears = self._hear()
                if not hears:
                    poll = stop
                self._look()
            elif time.monotonic() >= self._due_s or self._is_leaving():
                self._look()

    def _sleep_s(self, looks: bool) -> float:
        until_due_s = max(0.0, self._due_s - time.monotonic())
        if self._is_leaving():
            return min(until_due_s, STUCK_S - LEAD_S)
        return min(until_due_s, LOOK_S) if looks else until_due_s

    def _is_leaving(self) -> bool:
        return self._interrupter.is_in_function and self._interrupter.ended >= self._interrupter.iteration

    def _hear(self) -> bool:
        """Read the pending alerts; False: the store is gone, and with it the call."""
        try:
            self._interrupter.ended = self._alert.receive_alert()
            while has_come(self._alert.socket):
                self._interrupter.ended = self._alert.receive_alert()
        except StoreLostError:
            self._interrupter.ended = NEVER
            return False
        return True

    def _look(self) -> None:
        now_s = time.monotonic()
        self._due_s = now_s + self._tick_s
        due_s = self._interrupter.due_s if self._interrupter.is_in_hook else None
        if self._is_leaving() or (due_s is not None and now_s >= due_s):
            self._get_out(now_s)
        self._check_progress(now_s)

    def _get_out(self, now_s: float) -> None:
        iteration = self._interrupter.iteration
        began_s = max(self._ended_s, self._interrupter.since_s)
        is_first = self._pressed_s < began_s
        if is_first or now_s - self._pressed_s >= AGAIN_S:
            self._pressed_s = now_s
            self._interrupter.press(insists=not is_first)
        if self._is_leaving() and now_s - began_s >= STUCK_S and self._aborted < iteration:
            self._aborted = iteration
            self._abort(iteration)

    def _check_progress(self, now_s: float) -> None:
        interrupter = self._interrupter
        if interrupter.is_in_hook:
            self._allow(interrupter.since_s)
        elif self._is_leaving():
            self._allow(max(interrupter.since_s, self._ended_s))
        elif not self._progress.is_watched:
            if self._killer is not None:
                self._killer.spare()
        elif not interrupter.is_in_function:
            self._allow(now_s)  # it waits for others: being alive is enough
        else:
            last_s = self._progress.last_s()
            self._allow(last_s)
            if self._soft_s is not None and now_s - last_s >= self._soft_s:
                self._report_hang(interrupter.iteration, now_s - last_s)

    def _report_hang(self, iteration: int, silent_s: float) -> None:
        if self._reported < iteration:
            self._reported = iteration
            text = f"no progress for {silent_s:.1f} s"
            with contextlib.suppress(StoreLostError):
                self._alert.send(op="fault", iteration=iteration, rank=self._rank, kind="hang", text=text)

    def _allow(self, since_s: float) -> None:
        if self._killer is not None and self._hard_s is not None:
            self._killer.allow(since_s + self._hard_s)
