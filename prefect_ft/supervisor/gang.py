"""The agents of one phase's workers as one: asked, listened to, let go of. Pure: facts in, orders out.

Knows nothing of attempts or decisions, nor how orders are carried out.
"""

from __future__ import annotations

import hmac
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from prefect_ft.backends.base import Worker, place_of
from prefect_ft.errors import BackendError, LeaseLostError
from prefect_ft.supervisor.enact import GangChange
from prefect_ft.supervisor.event_parts import Diagnosed
from prefect_ft.supervisor.events import Attached, Diagnosis, Event, Lost, Stopped
from prefect_ft.supervisor.member import Broke, Connect, Deliver, HangUp, Member, Send, Unreachable
from prefect_ft.supervisor.member import Fact as MemberFact
from prefect_ft.supervisor.member import Order as MemberOrder
from prefect_ft.worker import frames
from prefect_ft.worker.keys import worker_key
from prefect_ft.worker.protocol import Token

MOST_PEERS = 8
"""How many other workers each worker watches for partitions."""


class WorkerGoneError(Exception):
    """A worker that is needed is not there; `on_any_system`: it could be on no other system either."""

    def __init__(
        self, worker: int, why: str, system: str | None = None, *, on_any_system: bool = False
    ) -> None:
        self.worker, self.why, self.system, self.on_any_system = worker, why, system, on_any_system
        super().__init__(why)


class Halt(NamedTuple):
    """What all agents said when an attempt had ended.

    `deaths` are when writers died, in seconds since the epoch. `passed_over` is what could not be verified when the
    one agent that there is looked for the last time; None: others may have seen something else, or nobody looked.
    """

    deaths: list[float]
    passed_over: Mapping[str, str] | None


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


class Gang:
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
        self.in_process_key = hmac.digest(key.encode(), b"in-process", "sha256").hex()
        """Shown by ranks to each other's store; who knows it does not know the run's key."""

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

    def worker(self, number: int) -> Worker:
        """Return a worker that exists."""
        return self._members[number].worker

    def answer(self, number: int, *kinds: type[Event]) -> Event | None:
        """Return what a worker's agent has answered of these kinds since it was asked."""
        return self._members[number].answer(*kinds)

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

    @property
    def _meeting(self) -> Attached | Stopped:
        meeting = self._members[0].meeting
        assert meeting is not None
        return meeting

    @property
    def master(self) -> tuple[str, int]:
        """Host and port for the next attempt's rendezvous, which worker 0's agent keeps free for it.

        Raises WorkerGoneError.
        """
        self.require(0)
        if self._meeting.port is None:
            raise WorkerGoneError(0, "it has no free port for the rendezvous")
        return self._hosts[0], self._meeting.port

    @property
    def has_store(self) -> bool:
        """Whether worker 0's agent itself serves the next attempt's rendezvous, if its ranks use that."""
        return self._meeting.store

    @property
    def in_process_port(self) -> int | None:
        """The port at which worker 0's agent coordinates restarts within the processes; None: it does not."""
        return self._meeting.in_process_port

    @property
    def diagnosed(self) -> dict[int, Mapping[int, Diagnosed]]:
        """What agents have answered to `diagnose`, by worker and rank."""
        answers = {number: member.answer(Diagnosis) for number, member in self._members.items()}
        return {number: each.ranks for number, each in answers.items() if isinstance(each, Diagnosis)}

    # -- workers ------------------------------------------------------------------------------------

    def adopt(self, worker: Worker, host: str) -> None:
        """Reach the agent of a worker that is there."""
        self._connect(worker, host)

    def keep(self, worker: Worker) -> None:
        """Take note of a worker that exists and whose agent is not there any more."""
        self._members[worker.number] = self._member(worker)

    def standings(self) -> dict[int, Attached]:
        """Return how each agent that was adopted stands."""
        answers = {number: member.answer(Attached) for number, member in self._members.items()}
        return {number: each for number, each in answers.items() if isinstance(each, Attached)}

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

    def give_up(self, number: int, why: str) -> None:
        """Let go of a worker that no attempt can be started on any more."""
        self._members[number].unusable = why
        self.let_go(number)

    def let_go_of_all(self) -> None:
        """Let go of all agents; what they run goes on. Idempotent."""
        for number in self.numbers:
            self.let_go(number)
        self._members.clear()

    # -- orders -------------------------------------------------------------------------------------

    def choose(self, token: Token, criteria: Mapping[int, Mapping[str, Any]]) -> None:
        """Have the agents of these workers choose the checkpoint to resume from, among what is there now."""
        for number in criteria:
            self.require(number)
        self.knows_checkpoints = True
        for number, fields in criteria.items():
            self._ask(number, "choose", {"token": token, **fields})

    def start(self, orders: Mapping[int, Mapping[str, Any]], token: Token) -> None:
        """Start an attempt's ranks; raises WorkerGoneError."""
        peers = self._peers(orders)
        for number in orders:
            self.require(number)
        for number, fields in orders.items():
            self._ask(number, "start", {"token": token, "peers": peers[number], **fields})

    def _peers(self, numbers: Iterable[int]) -> dict[int, list[str]]:
        """Return for each worker the hosts of those that follow it, in a ring."""
        ring = sorted(numbers)
        hosts = [self._hosts[number] for number in ring]
        following = [
            (hosts[at + 1 : at + 1 + MOST_PEERS] + hosts[:MOST_PEERS])[:MOST_PEERS] for at in range(len(ring))
        ]
        return {number: sorted({*following[at]} - {hosts[at]}) for at, number in enumerate(ring)}

    def ask_checkpoint(self, token: Token, signal: int | None) -> None:
        """Have all ranks asked for a checkpoint; `signal` says so besides."""
        for number in self.reached:
            self._ask(number, "checkpoint", {"token": token, "signal": signal})

    def sample_every(self, token: Token, period_s: float) -> None:
        """Have all ranks sampled that often, where agents take samples."""
        for number in self.sampling:
            self._ask(number, "watch", {"token": token, "period_s": period_s})

    def diagnose(self, token: Token, timeout_s: float) -> None:
        """Have found out where the ranks are."""
        for number in self.sampling:
            self._ask(number, "diagnose", {"token": token, "timeout_s": timeout_s})

    @property
    def sampling(self) -> list[int]:
        """The workers whose agents take samples: those of earlier versions do not, and know no such orders."""
        return [number for number in self.reached if self._members[number].is_sampling]

    def stop(self, token: Token, grace_s: float, *, complete: bool) -> None:
        """End every process of the attempt in every worker that answers. `complete`: it came to its own good end."""
        fields = {"token": token, "grace_s": grace_s, "complete": complete}
        for number in self.reached:
            member = self._members[number]
            if not member.is_ending:
                self._ask(number, "stop", fields)
            elif member.answer(Stopped) is None:
                member.expect("stop", fields)

    def halt(self) -> Halt:
        """Return what all agents said to `stop`, and take note of those that cannot be used any more."""
        answers = {number: member.answer(Stopped) for number, member in self._members.items()}
        stopped = {number: each for number, each in answers.items() if isinstance(each, Stopped)}
        for number, each in stopped.items():
            if each.stuck:
                self._members[number].unusable = f"processes {list(each.stuck)} hang in the kernel"
        return Halt(
            sorted({death for each in stopped.values() for death in each.deaths}),
            stopped[0].passed_over if [*self._members] == [*stopped] == [0] else None,
        )

    def _ask(self, number: int, op: str, fields: Mapping[str, Any]) -> None:
        self._order(self._members[number].ask(op, fields))

    def _order(self, orders: Iterable[MemberOrder]) -> None:
        self._orders += [order for order in orders if not isinstance(order, Deliver)]

    # -- facts --------------------------------------------------------------------------------------

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
