"""One worker's agent as the orchestrator sees it: a state machine. Pure: facts in, orders out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prefect_ft.backends.base import Worker
from prefect_ft.errors import AgentError, LeaseLostError, NewerFormatError, PrefectFTError
from prefect_ft.formats import how_to_get, this_version
from prefect_ft.supervisor.conversation import Conversation
from prefect_ft.supervisor.events import (
    Attached,
    Chosen,
    Diagnosis,
    Event,
    Excerpt,
    Exited,
    Lost,
    Output,
    Refused,
    Sampled,
    Started,
    StartFailed,
    Stopped,
    Superseded,
)
from prefect_ft.worker import frames

State = Literal["connecting", "attaching", "attached", "regaining", "reattaching", "gone"]


# -- facts ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connected:
    """A connection to a worker's agent is open. `link` numbers the connection, in all facts about it."""

    worker: int
    link: int


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No connection to the agent of a worker could be opened."""

    worker: int
    link: int
    why: str


@dataclass(frozen=True, slots=True)
class Broke:
    """A connection broke, or the agent broke the protocol."""

    worker: int
    link: int


@dataclass(frozen=True, slots=True)
class Heard:
    """The agent of a worker has reported something."""

    worker: int
    link: int
    event: Event


Fact = Connected | Unreachable | Broke | Heard


# -- orders -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection. `again`: keep trying where only the route to the agent is unavailable; the worker existed."""

    worker: Worker
    link: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """Send an order to the agent of a worker."""

    worker: int
    link: int
    op: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close a connection, or cancel one that is being opened."""

    worker: int
    link: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand an event to the listener."""

    worker: int
    event: Event | Lost


Order = Connect | Send | HangUp | Deliver

_OUTDATES: Mapping[str, tuple[type[Event], ...]] = {
    "choose": (Chosen,),
    "start": (Started, StartFailed, Stopped),
    "stop": (Stopped,),
    "diagnose": (Diagnosis,),
}
"""Answers that are dropped when the next order is sent."""

_ANSWERS = (Attached, Chosen, Started, StartFailed, Stopped, Diagnosis)


# -- the machine ------------------------------------------------------------------------------------


class Member:
    """A worker, from its creation until it is destroyed. `state` is the known state of its agent."""

    def __init__(
        self,
        worker: Worker,
        *,
        introduction: Mapping[str, Any],
        new_link: Callable[[], int],
        loss: Callable[[Worker], Lost],
    ) -> None:
        """`introduction` are the fields of `attach` without `have`; `loss` returns how a worker was lost."""
        self.worker = worker
        self.state: State = "gone"
        self.why_gone = "its agent is gone"
        self.unusable: str | None = None
        """Why its worker can no longer be used, though its agent may still run."""
        self.meeting: Attached | Stopped | None = None
        """The agent's last report of where the next attempt's ranks can meet."""
        self.is_ending = False
        """Whether the agent has reported that it ends the attempt by itself."""
        self.is_sampling = False
        self.printed_s = 0.0
        """When output came last, by the driver's clock."""
        self._introduction, self._new_link, self._loss = introduction, new_link, loss
        self._link = 0
        self._conversation = Conversation()
        self._answers: dict[type[Event], Event] = {}
        """The agent's answers to the last order."""
        self._standing_order: Mapping[str, Any] | None = None
        """The `watch` that holds for this attempt."""

    @property
    def number(self) -> int:
        """The worker's number."""
        return self.worker.number

    @property
    def is_present(self) -> bool:
        """Whether the agent is connected, or being reconnected."""
        return self.state not in ("connecting", "gone")

    @property
    def is_spoken_with(self) -> bool:
        """Whether orders reach the agent now."""
        return self.state in ("attaching", "attached")

    def answer(self, *kinds: type[Event]) -> Event | None:
        """Return the agent's answer of one of these kinds to the last order; None: there is none yet."""
        return next((self._answers[kind] for kind in kinds if kind in self._answers), None)

    # -- asked for ----------------------------------------------------------------------------------

    def connect(self) -> list[Order]:
        """Connect to the agent of a worker that was just created, or found."""
        self.state, self._link = "connecting", self._new_link()
        return [Connect(self.worker, self._link)]

    def ask(self, op: str, fields: Mapping[str, Any]) -> list[Order]:
        """Send an order; an agent that is being reconnected gets it later, if the order has an answer."""
        for kind in _OUTDATES.get(op, ()):
            self._answers.pop(kind, None)
        if op == "start":
            self.is_ending, self._standing_order = False, None
        if op == "watch":
            self._standing_order = fields
        self._conversation.ask(op, fields)
        return [Send(self.number, self._link, op, fields)] if self.is_spoken_with else []

    def expect(self, op: str, fields: Mapping[str, Any]) -> None:
        """Record an order that the agent carries out by itself; it is sent if the connection breaks."""
        self._conversation.ask(op, fields)

    def let_go(self) -> list[Order]:
        """Drop the connection to the agent for good."""
        orders: list[Order] = [HangUp(self.number, self._link)] if self.state != "gone" else []
        self.state, self.is_sampling, self.is_ending = "gone", False, False
        return orders

    # -- facts --------------------------------------------------------------------------------------

    def handle(self, fact: Fact, now_s: float) -> list[Order]:
        """Take a fact; one about an earlier connection is ignored. Raises PrefectFTError: see `_refused`."""
        if fact.link != self._link:
            return []
        step = _STEPS.get((self.state, type(fact)))
        return step(self, fact, now_s) if step is not None else []

    def _connected(self, _fact: Connected, _now_s: float) -> list[Order]:
        self.state = "attaching" if self.state == "connecting" else "reattaching"
        fields = {**self._introduction, "have": self._conversation.have}
        return [Send(self.number, self._link, "attach", fields)]

    def _unreachable(self, fact: Unreachable, _now_s: float) -> list[Order]:
        if self.state == "connecting":
            self.state, self.why_gone = "gone", f"its agent cannot be reached: {fact.why}"
            return []
        return self._gone()

    def _broke(self, _fact: Broke, _now_s: float) -> list[Order]:
        """Reconnect to the agent, once for each connection that it accepted."""
        before = HangUp(self.number, self._link)
        if self.state != "attached":
            return [before, *self._gone()]
        self.state, self._link, self.is_ending = "regaining", self._new_link(), False
        return [before, Connect(self.worker, self._link, again=True)]

    def _heard(self, fact: Heard, now_s: float) -> list[Order]:
        if isinstance(fact.event, Attached):
            if self.state == "reattaching":
                return self._reattached(fact.event, now_s)
            self.state = "attached"
        return self._take(fact.event, now_s)

    def _reattached(self, attached: Attached, now_s: float) -> list[Order]:
        """Take missed events, and repeat an unanswered order; an agent that does not know the conversation is gone."""
        resumed = self._conversation.resumed(attached)
        if resumed is None:
            return [HangUp(self.number, self._link), *self._gone()]
        self.state = "attached"
        orders: list[Order] = [Deliver(self.number, attached)]
        for event in resumed.missed:
            orders += self._take(event, now_s)
        if resumed.order is not None:
            orders += self.ask(*resumed.order)
        if self._standing_order is not None and self.is_sampling:
            orders += self.ask("watch", self._standing_order)
        return orders

    def _take(self, event: Event, now_s: float) -> list[Order]:
        self._conversation.hear(event)
        match event:
            case Superseded():
                raise LeaseLostError(
                    f"an orchestrator of epoch {event.epoch} has taken over worker {self.number}"
                )
            case Refused():
                raise self._refused(event)
            case Exited(ends=True):
                self.is_ending = True
            case Sampled():
                self.is_sampling = True
            case Output() | Excerpt():
                self.printed_s = now_s
            case Attached() | Stopped():
                self.meeting = event
        if isinstance(event, _ANSWERS):
            self._answers[type(event)] = event
        return [Deliver(self.number, event)]

    def _refused(self, event: Refused) -> PrefectFTError:
        """Return the error for an agent's refusal."""
        if event.epoch > self._introduction["epoch"]:
            return LeaseLostError(f"worker {self.number} obeys an orchestrator of epoch {event.epoch}")
        version = frames.VERSION if event.version is None else event.version
        if event.op == "attach" and version > frames.VERSION:
            return NewerFormatError(
                f"the agent of worker {self.number} speaks version {version} of the protocol and "
                f"prefect-ft {this_version()} speaks {frames.VERSION}; its ranks were left as they are. "
                f"{how_to_get(event.release)}"
            )
        return AgentError(f"worker {self.number} refused {event.op}: {event.why}")

    def _gone(self) -> list[Order]:
        self.state, self.is_sampling, self.is_ending = "gone", False, False
        self.why_gone = "its agent is gone"
        return [Deliver(self.number, self._loss(self.worker))]


_STEPS: Mapping[tuple[State, type[Fact]], Callable[[Member, Any, float], list[Order]]] = {
    ("connecting", Connected): Member._connected,
    ("connecting", Unreachable): Member._unreachable,
    ("attaching", Heard): Member._heard,
    ("attaching", Broke): Member._broke,
    ("attached", Heard): Member._heard,
    ("attached", Broke): Member._broke,
    ("regaining", Connected): Member._connected,
    ("regaining", Unreachable): Member._unreachable,
    ("reattaching", Heard): Member._heard,
    ("reattaching", Broke): Member._broke,
}
"""The handler of each fact by state; in other states it is late, and ignored."""
