"""The orchestrator's end of the connection to one agent."""

from __future__ import annotations

from typing import Any

from prefect_ft.backends.base import Address, RouteUnavailableError, Worker
from prefect_ft.errors import AgentError
from prefect_ft.supervisor.events import Event, read_event
from prefect_ft.supervisor.masking import Mask
from prefect_ft.worker import frames
from prefect_ft.worker.forms import FormError

CONNECT_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 10.0


class LinkLostError(Exception):
    """The agent is gone, or breaks the protocol."""


class LinkUnavailableError(LinkLostError):
    """The route to the agent is unavailable; nothing is known about the agent itself."""


class Link:
    """A connection to one worker's agent; `fileno()` is readable when events are waiting."""

    def __init__(self, worker: Worker, address: Address, mask: Mask) -> None:
        """Connect; raises LinkLostError or its LinkUnavailableError. `mask` removes secrets from incoming events."""
        self.worker = worker
        self._mask = mask
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
        """Return the events received so far, without waiting; raises LinkLostError when the agent has gone."""
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
            messages = list(self._reader.feed(data))
        except frames.FrameError as exc:
            raise LinkLostError(str(exc)) from exc
        try:
            events = [read_event(self._mask(message)) for message in messages]
        except FormError as exc:
            raise LinkLostError(f"the agent breaks the protocol: {exc}") from exc
        return [event for event in events if event is not None]  # others are of a later version

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()
