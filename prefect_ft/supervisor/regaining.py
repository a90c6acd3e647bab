"""Going on with an agent whose connection broke: it is reached again, and told and asked what got lost.

Owns the attempts to connect, beside the supervisor's thread, and the memory of what was said; what is said
on a new connection is the gang's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from prefect_ft.backends.base import Address, Worker
from prefect_ft.supervisor.calls import Calls
from prefect_ft.supervisor.comeback import untold
from prefect_ft.supervisor.link import Event, Link, LinkLostError, LinkUnavailableError

RETRY_S = 1.0
AWAY_TIMEOUT_S = 600.0
"""How long it is tried where what leads to workers is away: they train on, and nothing can be made meanwhile."""

_ANSWERED_BY = {
    "choose": {"chosen"},
    "start": {"started", "start_failed"},
    "stop": {"stopped"},
}


Order = tuple[str, Mapping[str, Any]]


class Resumed(NamedTuple):
    """What was missed, and the order that is to be given again, if there is one."""

    missed: Sequence[Event]
    order: Order | None


class Regaining:
    """Reaches one agent again. `done` gets the connection, or why there is none, unless this is dropped first."""

    def __init__(
        self, worker: Worker, address: Address, calls: Calls, done: Callable[[Link | LinkLostError], None]
    ) -> None:
        """`done` is called on the supervisor's thread."""
        self._worker, self._address = worker, address
        self._calls, self._done = calls, done
        self._dropped = threading.Event()
        self._lock = threading.Lock()
        self._outcome: Link | LinkLostError | None = None
        threading.Thread(target=self._run, name="prefect-ft-regaining", daemon=True).start()

    def drop(self) -> None:
        """Do without it after all. Idempotent."""
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
                return Link(self._worker, self._address)
            except LinkUnavailableError as exc:
                if time.monotonic() > deadline_s or self._dropped.wait(RETRY_S):
                    return exc
            except LinkLostError as exc:
                return exc

    def _tell(self) -> None:
        if not self._dropped.is_set():
            assert self._outcome is not None
            self._done(self._outcome)


class Conversation:
    """What one agent has told, and what it was asked and has not answered yet."""

    def __init__(self) -> None:
        self.has_begun = False
        """Whether it has let us in."""
        self._token: Sequence[int] | None = None
        """That of all that it tells: of the last start that it knows."""
        self._asked: Order | None = None
        self._output: dict[int, tuple[int, str]] = {}
        """By rank, the last piece of output and its offset."""

    def ask(self, order: str, fields: Mapping[str, Any]) -> None:
        """Take note of an order that is given."""
        if order in _ANSWERED_BY:
            self._asked = order, fields
        if order == "start":
            self._output.clear()

    def hear(self, event: Event) -> None:
        """Take note of what the agent tells."""
        self.has_begun = self.has_begun or event["ev"] == "attached"
        self._token = event["token"]
        if event["ev"] == "output":
            self._output[event["rank"]] = event["offset"], event["text"]
        elif self._asked is not None and event["ev"] in _ANSWERED_BY[self._asked[0]]:
            self._asked = None

    @property
    def have(self) -> dict[int, int]:
        """How many bytes of each rank's output have come."""
        return {
            rank: offset + len(text.encode("utf-8", "surrogateescape"))
            for rank, (offset, text) in self._output.items()
        }

    def resumed(self, attached: Event) -> Resumed | None:
        """Say how to go on with an agent that has let us in again; None: it knows nothing of this conversation."""
        missed = untold(attached)
        if attached["token"] == self._token:
            return Resumed(missed, self._asked)
        if self._asked is None or not _has_started(attached, *self._asked):
            return None
        return Resumed([{"ev": "started", "token": attached["token"], "stays": {}}, *missed], None)


def _has_started(attached: Event, order: str, fields: Mapping[str, Any]) -> bool:
    """Whether an agent has carried out a start whose answer did not come."""
    known = {*attached["running"], *map(int, attached["exits"])}
    return (
        order == "start"
        and attached["token"] == list(fields["token"])
        and known == {int(rank) for rank in fields["ranks"]}
    )
