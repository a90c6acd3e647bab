"""The workers of one phase that exist, and the connections to their agents. Pure: facts in, orders out.

Knows nothing of attempts or decisions, nor how orders are carried out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from prefect_ft.backends.base import Worker, place_of
from prefect_ft.errors import BackendError, LeaseLostError
from prefect_ft.supervisor.enact import GangChange
from prefect_ft.supervisor.events import Event, Lost
from prefect_ft.supervisor.member import Broke, Connect, Deliver, HangUp, Member, Send, Unreachable
from prefect_ft.supervisor.member import Fact as MemberFact
from prefect_ft.supervisor.member import Order as MemberOrder
from prefect_ft.worker import frames
from prefect_ft.worker.keys import worker_key


class WorkerGoneError(Exception):
    """A worker that is needed is not there; `on_any_system`: it could be on no other system either."""

    def __init__(
        self, worker: int, why: str, system: str | None = None, *, on_any_system: bool = False
    ) -> None:
        self.worker, self.why, self.system, self.on_any_system = worker, why, system, on_any_system
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Have these workers destroyed and created."""

    old: tuple[Worker, ...]
    new: tuple[Worker, ...]


Order = Connect | Send | HangUp | Exchange
"""What a driver carries out."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The workers of the last `Exchange` have been destroyed and created; `hosts` are those of the new ones."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExchangeFailed:
    """The infrastructure could not exchange workers."""

    error: BackendError


Fact = MemberFact | Exchanged | ExchangeFailed
"""What a driver brings."""


Answered = TypeVar("Answered", bound=Event)


class Roster:
    """The workers of a phase that exist, by number, each with what is known of its agent."""

    def __init__(
        self,
        *,
        run_id: str,
        phase_index: int,
        key: str,
        epoch: int,
        loss: Callable[[Worker], Lost],
        all_look: bool = False,
    ) -> None:
        """`key` is the run's, of which each worker has its own. `loss` finds out what became of a worker.

        `all_look`: every agent looks at checkpoints, not worker 0's alone.
        """
        self._run_id, self._phase_index, self._key, self._epoch = run_id, phase_index, key, epoch
        self._loss = loss
        self._links = itertools.count(1)
        self._members: dict[int, Member] = {}
        self._hosts: dict[int, str] = {}
        self._orders: list[Order] = []
        self.fence: LeaseLostError | None = None
        """Why nothing may be ordered any more: the workers are another orchestrator's."""
        self.breaks = 0
        """How many connections broke or could not be opened: only then may a worker have gone."""
        self._all_look = all_look
        self.knows_checkpoints = False
        """Whether the agents that look at checkpoints know all that is known of them."""

    def drain(self) -> list[Order]:
        """Return what has been ordered since this was asked last."""
        orders, self._orders = self._orders, []
        return orders

    # -- what is known ------------------------------------------------------------------------------

    @property
    def numbers(self) -> tuple[int, ...]:
        """The workers that exist, whether their agents answer or not."""
        return tuple(sorted(self._members))

    @property
    def reached(self) -> tuple[int, ...]:
        """The workers whose agents are spoken with."""
        return tuple(number for number in self.numbers if self._members[number].is_present)

    @property
    def members(self) -> Mapping[int, Member]:
        """Each worker that exists, with what is known of its agent."""
        return self._members

    def worker(self, number: int) -> Worker:
        """Return a worker that exists."""
        return self._members[number].worker

    def host(self, number: int) -> str:
        """Return where the agent of a worker is reached."""
        return self._hosts[number]

    def answer(self, number: int, *kinds: type[Event]) -> Event | None:
        """Return what a worker's agent has answered of these kinds since it was asked."""
        return self._members[number].answer(*kinds)

    def answers(self, kind: type[Answered]) -> dict[int, Answered]:
        """Return what the agents have answered of a kind since they were asked, by worker."""
        found = {number: member.answer(kind) for number, member in self._members.items()}
        return {number: each for number, each in found.items() if isinstance(each, kind)}

    def is_present(self, number: int) -> bool:
        """Return whether a worker's agent is spoken with, or is being reached again."""
        return self._members[number].is_present

    def is_gone(self, number: int) -> bool:
        """Return whether nothing is to be expected of a worker's agent any more."""
        return self._members[number].state == "gone"

    def is_being_reached(self, number: int) -> bool:
        """Return whether the connection to a worker's agent broke and a new one is being opened."""
        return self._members[number].state == "regaining"

    def may_answer(self, number: int) -> bool:
        """Return whether a worker's agent can be heard, and does not end the attempt by itself."""
        member = self._members[number]
        return member.is_spoken_with and not member.is_ending

    def printed_s(self, number: int) -> float:
        """Return when output of a worker came last, by the driver's clock."""
        return self._members[number].printed_s

    def require(self, number: int) -> None:
        """Raise WorkerGoneError for a worker whose agent is gone."""
        if self.is_gone(number):
            raise WorkerGoneError(number, self._members[number].why_gone)

    def check_usable(self) -> None:
        """Raise WorkerGoneError for a worker that no attempt can be started on."""
        for number in self.numbers:
            if (why := self._members[number].unusable) is not None:
                raise WorkerGoneError(number, why)
            self.require(number)

    # -- who they are -------------------------------------------------------------------------------

    def adopt(self, worker: Worker, host: str) -> None:
        """Reach the agent of a worker that is there."""
        self._connect(worker, host)

    def keep(self, worker: Worker) -> None:
        """Take note of a worker that exists and whose agent is not there any more."""
        self._members[worker.number] = self._member(worker)

    def exchange(
        self, change: GangChange, placement: Sequence[str], decision: int, *, is_taken_up: bool = False
    ) -> Exchange | None:
        """Order what a decision changes, and return that; None where nothing changes.

        `is_taken_up`: what an earlier life has created for the same decision stays, because that much has been
        carried out.
        """
        made = self._made(placement, decision) if is_taken_up else set()
        create = [number for number in change.create if number not in made]
        replaced = [number for number in create if number in self._members]
        surplus = [number for number in self._members if number >= len(placement)]
        destroy = sorted({*change.destroy, *replaced, *surplus} - made)
        old = tuple(self._members[number].worker for number in destroy if number in self._members)
        for number in destroy:
            self.let_go(number)
            self._members.pop(number, None)
        new = tuple(
            Worker(number=number, system=placement[number], epoch=self._epoch, decision=decision)
            for number in create
        )
        for worker in new:
            self._members[worker.number] = self._member(worker)
        if not old and not new:
            return None
        exchange = Exchange(old, new)
        self._orders.append(exchange)
        return exchange

    def _made(self, placement: Sequence[str], decision: int) -> set[int]:
        """Return the workers that were created for a decision, where it wants them, and that answer."""
        return {
            number
            for number, member in self._members.items()
            if member.worker.decision == decision and member.is_present
            if number < len(placement) and member.worker.system == placement[number]
        }

    def exchanged(self, workers: Sequence[Worker], hosts: Sequence[str]) -> None:
        """Reach the agents of workers that have been created."""
        for worker, host in zip(workers, hosts, strict=True):
            self._connect(worker, host)

    def _connect(self, worker: Worker, host: str) -> None:
        looks = self._all_look or worker.number == 0
        self.knows_checkpoints = self.knows_checkpoints and not looks
        member = self._members[worker.number] = self._member(worker)
        self._hosts[worker.number] = host
        self._order(member.connect())

    def _member(self, worker: Worker) -> Member:
        key = worker_key(self._key, place_of(self._phase_index, worker))
        introduction = {"version": frames.VERSION, "run": self._run_id, "key": key, "epoch": self._epoch}
        return Member(worker, introduction=introduction, new_link=lambda: next(self._links), loss=self._loss)

    def let_go(self, number: int) -> None:
        """Have nothing to do with a worker's agent any more."""
        if number in self._members:
            self._order(self._members[number].let_go())

    def mark_unusable(self, number: int, why: str) -> None:
        """Have no attempt started on a worker any more."""
        self._members[number].unusable = why

    def give_up(self, number: int, why: str) -> None:
        """Let go of a worker that no attempt can be started on any more."""
        self.mark_unusable(number, why)
        self.let_go(number)

    def let_go_of_all(self) -> None:
        """Let go of all agents; what they run goes on. Idempotent."""
        for number in self.numbers:
            self.let_go(number)
        self._members.clear()

    # -- what is said -------------------------------------------------------------------------------

    def ask(self, number: int, op: str, fields: Mapping[str, Any]) -> None:
        """Send an order to a worker's agent."""
        self._order(self._members[number].ask(op, fields))

    def _order(self, orders: Iterable[MemberOrder]) -> None:
        self._orders += [order for order in orders if not isinstance(order, Deliver)]

    def handle(self, fact: MemberFact, now_s: float) -> list[Deliver]:
        """Take a fact; return what was heard. Raises LeaseLostError, after which nothing may be ordered any more."""
        member = self._members.get(fact.worker)
        if member is None:
            return []
        if isinstance(fact, (Broke, Unreachable)):
            self.breaks += 1
        try:
            orders = member.handle(fact, now_s)
        except LeaseLostError as exc:
            self.fence = exc
            raise
        self._order(orders)
        return [order for order in orders if isinstance(order, Deliver)]

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself; for tests."""
        for number, member in self._members.items():
            assert member.number == number
            assert member.is_present or not member.is_sampling
            assert not member.is_ending or member.state == "attached", (number, member.state)
