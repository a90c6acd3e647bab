"""Reconnects to an agent, in a thread beside the supervisor's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from prefect_ft.backends.base import Address, Worker
from prefect_ft.supervisor.calls import Calls
from prefect_ft.supervisor.link import Link, LinkLostError, LinkUnavailableError
from prefect_ft.supervisor.masking import Mask

RETRY_S = 1.0
AWAY_TIMEOUT_S = 600.0
"""How long to retry where the route to workers is unavailable: they keep training, and none can be created."""


class Reaching:
    """Reconnects to one agent. `done` gets the connection, or the error, unless this is cancelled first."""

    def __init__(
        self,
        worker: Worker,
        address: Address,
        mask: Mask,
        calls: Calls,
        done: Callable[[Link | LinkLostError], None],
    ) -> None:
        """`done` is called on the supervisor's thread."""
        self._worker, self._address, self._mask = worker, address, mask
        self._calls, self._done = calls, done
        self._dropped = threading.Event()
        self._lock = threading.Lock()
        self._outcome: Link | LinkLostError | None = None
        threading.Thread(target=self._run, name="prefect-ft-reaching", daemon=True).start()

    def drop(self) -> None:
        """Cancel it. Idempotent."""
        with self._lock:
            self._dropped.set()
            if isinstance(self._outcome, Link):
                self._outcome.close()

    def _run(self) -> None:
        outcome = self._reached()
        with self._lock:
            self._outcome = outcome
            if not self._dropped.is_set():
                self._calls.soon(self._tell)
            elif isinstance(outcome, Link):
                outcome.close()

    def _reached(self) -> Link | LinkLostError:
        deadline_s = time.monotonic() + AWAY_TIMEOUT_S
        while True:
            try:
                return Link(self._worker, self._address, self._mask)
            except LinkUnavailableError as exc:
                if time.monotonic() > deadline_s or self._dropped.wait(RETRY_S):
                    return exc
            except LinkLostError as exc:
                return exc

    def _tell(self) -> None:
        if not self._dropped.is_set():
            assert self._outcome is not None
            self._done(self._outcome)
