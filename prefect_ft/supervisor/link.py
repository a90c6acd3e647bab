"""The orchestrator's end of the connection to one agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect_ft.backends.base import Address, RouteUnavailableError, Worker
from prefect_ft.errors import AgentError
from prefect_ft.supervisor.events import read_event
from prefect_ft.worker import frames
from prefect_ft.worker.forms import FormError

Event = Mapping[str, Any]

CONNECT_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 10.0


class LinkLostError(Exception):
    """The agent is gone, or breaks the protocol."""


class LinkUnavailableError(LinkLostError):
    """What leads to the agent is away; of the agent itself nothing is known."""


class Link:
    """A connection to one worker's agent; `fileno()` is readable when events are waiting."""

    def __init__(self, worker: Worker, address: Address) -> None:
        """Connect; raises LinkLostError, of which LinkUnavailableError."""
        self.worker = worker
        self.host = address.host
        self._reader = frames.FrameReader()
        try:
            self._connection = address.connect(CONNECT_TIMEOUT_S)
        except RouteUnavailableError as exc:
            raise LinkUnavailableError(str(exc)) from exc
        except OSError as exc:
            raise LinkLostError(str(exc)) from exc

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._connection.fileno()

    def send(self, order: str, **fields: Any) -> None:
        """Send an order; raises LinkLostError, and AgentError for one that is too long to send."""
        try:
            frame = frames.encode({"op": order, **fields})
        except frames.FrameError as exc:
            raise AgentError(f"the order {order!r} cannot be sent: {exc}") from exc
        try:
            self._connection.settimeout(SEND_TIMEOUT_S)
            self._connection.sendall(frame)
        except OSError as exc:
            raise LinkLostError(str(exc)) from exc

    def receive(self) -> list[Event]:
        """Return the events that have come, without waiting; raises LinkLostError when the agent has gone."""
        try:
            self._connection.setblocking(False)
            data = self._connection.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError as exc:
            raise LinkLostError(str(exc)) from exc
        if not data:
            raise LinkLostError("the agent closed the connection")
        try:
            told = list(self._reader.feed(data))
        except frames.FrameError as exc:
            raise LinkLostError(str(exc)) from exc
        try:
            return [
                message for message in told if read_event(message) is not None
            ]  # others are of a later version
        except FormError as exc:
            raise LinkLostError(f"the agent breaks the protocol: {exc}") from exc

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._connection.close()
