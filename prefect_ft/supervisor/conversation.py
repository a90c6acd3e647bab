"""What one agent has reported, and the order that it has not answered: what a new connection has to catch up on.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from prefect_ft.supervisor.comeback import unheard
from prefect_ft.supervisor.events import Attached, Chosen, Event, Output, Started, StartFailed, Stopped
from prefect_ft.worker.protocol import Token

_ANSWERED_BY: Mapping[str, tuple[type[Event], ...]] = {
    "choose": (Chosen,),
    "start": (Started, StartFailed),
    "stop": (Stopped,),
}

Ask = tuple[str, Mapping[str, Any]]
"""An order to an agent: its name and its fields."""


class Resumed(NamedTuple):
    """Missed events, and the order that has to be sent again, if there is one."""

    missed: Sequence[Event]
    order: Ask | None


class Conversation:
    """The conversation with one agent, over any number of connections."""

    def __init__(self) -> None:
        self.has_begun = False
        """Whether the agent has accepted the connection."""
        self._token: Token | None = None
        """The token of its events: of the last start that it knows."""
        self._asked: Ask | None = None
        self._output: dict[int, tuple[int, str]] = {}
        """By rank, the last piece of output and its offset."""

    def ask(self, op: str, fields: Mapping[str, Any]) -> None:
        """Record an order that is sent."""
        if op in _ANSWERED_BY:
            self._asked = op, fields
        if op == "start":
            self._output.clear()

    def hear(self, event: Event) -> None:
        """Record an event of the agent."""
        self.has_begun = self.has_begun or isinstance(event, Attached)
        self._token = event.token
        if isinstance(event, Output):
            self._output[event.rank] = event.offset, event.text
        elif self._asked is not None and isinstance(event, _ANSWERED_BY[self._asked[0]]):
            self._asked = None

    @property
    def have(self) -> dict[int, int]:
        """How many bytes of each rank's output have been received."""
        return {
            rank: offset + len(text.encode("utf-8", "surrogateescape"))
            for rank, (offset, text) in self._output.items()
        }

    def resumed(self, attached: Attached) -> Resumed | None:
        """Return how to continue with an agent after a reconnection; None: it does not know this conversation."""
        missed = unheard(attached)
        if attached.token == self._token:
            return Resumed(missed, self._asked)
        if self._asked is None or not _has_started(attached, *self._asked):
            return None
        return Resumed([Started(token=attached.token, pids={}, stays={}, warm=False), *missed], None)


def _has_started(attached: Attached, op: str, fields: Mapping[str, Any]) -> bool:
    """Return whether an agent has carried out a start whose answer did not come."""
    known = {*attached.running, *attached.exits}
    return (
        op == "start"
        and attached.token == tuple(fields["token"])
        and known == {int(rank) for rank in fields["ranks"]}
    )
