"""Carries out a state machine's orders and brings it the facts: sockets, threads, the clock, the infrastructure.

Decides nothing. One thread acts; results of other threads reach it through `Calls`.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from typing import Protocol

from typing_extensions import assert_never

from prefect_ft.backends.base import Address, Backend, Worker
from prefect_ft.errors import BackendError, LeaseLostError
from prefect_ft.supervisor.calls import Calls
from prefect_ft.supervisor.link import Link, LinkLostError
from prefect_ft.supervisor.masking import Mask
from prefect_ft.supervisor.member import Broke, Connect, Connected, HangUp, Heard, Send, Unreachable
from prefect_ft.supervisor.reaching import Reaching
from prefect_ft.supervisor.roster import Exchange, Exchanged, ExchangeFailed, Fact, Order
from prefect_ft.supervisor.stopping import StopRequest

MAX_CONCURRENT_CONNECTS = 32


class Machine(Protocol):
    """A state machine that can be driven: a lifecycle, or a crew."""

    @property
    def due_s(self) -> float | None:
        """When `handle` has to be called even without facts, by the driver's clock; None: never."""

    @property
    def fence(self) -> LeaseLostError | None:
        """Why nothing may be done to workers any more."""

    def handle(self, facts: Sequence[Fact], now_s: float) -> list[Order]:
        """Take the facts, and return the orders."""

    def let_go(self) -> None:
        """Disconnect from all agents."""


class Driver:
    """Drives one machine. `calls` are made while waiting for facts."""

    def __init__(
        self,
        machine: Machine,
        backend: Backend,
        *,
        stop: StopRequest,
        calls: Calls,
        mask: Mask,
        check: Callable[[], None],
    ) -> None:
        """`check` is called before every action on workers; it raises LeaseLostError if the run was lost."""
        self._machine, self._backend = machine, backend
        self._stop, self._calls, self._mask, self._check = stop, calls, mask, check
        self._selector = selectors.DefaultSelector()
        self._selector.register(stop, selectors.EVENT_READ)
        self._selector.register(calls, selectors.EVENT_READ)
        self._addresses: dict[Worker, Address] = {}
        self._links: dict[int, Link] = {}
        """The open connections, by number."""
        self._reaching: dict[int, Reaching] = {}
        self._facts: list[Fact] = []
        """Facts that the machine has not handled yet."""

    def now_s(self) -> float:
        """Return the time by the driver's clock."""
        return time.monotonic()

    def found(self, worker: Worker, address: Address) -> None:
        """Record the address of a worker that existed before."""
        self._addresses[worker] = address

    def run(self, until: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Drive the machine until the condition holds, or the time is over; raises what ends the phase."""
        deadline_s = None if timeout_s is None else self.now_s() + timeout_s
        self._advance()
        while not until():
            if deadline_s is not None and self.now_s() >= deadline_s:
                return
            self._wait(deadline_s)
            self._advance()

    def _advance(self) -> None:
        """Hand the machine all facts, and carry out what it orders, until nothing more follows."""
        while True:
            facts, self._facts = self._facts, []
            orders = self._machine.handle(facts, self.now_s())
            if not orders:
                return
            self.may_act()
            for _, alike in groupby(orders, key=type):
                self._carry_out(list(alike))

    def may_act(self) -> None:
        """Raise LeaseLostError if the workers are another orchestrator's."""
        if self._machine.fence is not None:
            raise self._machine.fence
        self._check()

    def _wait(self, deadline_s: float | None) -> None:
        """Wait for a fact, the deadline, or the machine's own time."""
        if self._stop.lost is not None:
            raise self._stop.lost
        times_s = [each for each in (deadline_s, self._machine.due_s) if each is not None]
        timeout_s = min(times_s) - self.now_s() if times_s else None  # one that is over does not wait
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._stop:
                self._selector.unregister(self._stop)  # stays readable; `wanted` says the rest
            elif key.fileobj is self._calls:
                self._calls.make()
            else:
                self._facts += self._received(*key.data)

    @staticmethod
    def _received(number: int, link: Link) -> Iterator[Fact]:
        try:
            for event in link.receive():
                yield Heard(link.worker.number, number, event)
        except LinkLostError:
            yield Broke(link.worker.number, number)

    # -- orders -------------------------------------------------------------------------------------

    def _carry_out(self, alike: Sequence[Order]) -> None:
        """Carry out orders of one kind."""
        if connects := [order for order in alike if isinstance(order, Connect)]:
            self._connect(connects)
        for order in alike:
            match order:
                case Connect():
                    pass  # all at once
                case Send():
                    self._send(order)
                case HangUp():
                    self._hang_up(order.link)
                case Exchange():
                    self._exchange(order)
                case _:
                    assert_never(order)

    def _connect(self, orders: Sequence[Connect]) -> None:
        """Open connections in parallel: each waits for an agent's start and handshake, or a lost node's time limit."""
        for order in orders:
            if order.again:
                self._reconnect(order)
        first = [order for order in orders if not order.again]
        with ThreadPoolExecutor(MAX_CONCURRENT_CONNECTS) as pool:
            for order, outcome in pool.map(self._opened, first):
                self._reached(order, outcome)

    def _reconnect(self, order: Connect) -> None:
        self._reaching[order.link] = Reaching(
            order.worker,
            self._addresses[order.worker],
            self._mask,
            self._calls,
            lambda outcome: self._reached(order, outcome),
        )

    def _opened(self, order: Connect) -> tuple[Connect, Link | LinkLostError]:
        try:
            return order, Link(order.worker, self._addresses[order.worker], self._mask)
        except LinkLostError as exc:
            return order, exc

    def _reached(self, order: Connect, outcome: Link | LinkLostError) -> None:
        self._reaching.pop(order.link, None)
        number = order.worker.number
        if isinstance(outcome, LinkLostError):
            self._facts.append(Unreachable(number, order.link, str(outcome)))
            return
        self._links[order.link] = outcome
        self._selector.register(outcome, selectors.EVENT_READ, (order.link, outcome))
        self._facts.append(Connected(number, order.link))

    def _send(self, order: Send) -> None:
        if (link := self._links.get(order.link)) is None:
            return  # closed by an order before this one
        try:
            link.send(order.op, **order.fields)
        except LinkLostError:
            self._facts.append(Broke(order.worker, order.link))

    def _hang_up(self, number: int) -> None:
        if (reaching := self._reaching.pop(number, None)) is not None:
            reaching.drop()
        if (link := self._links.pop(number, None)) is not None:
            self._selector.unregister(link)
            link.close()

    def _exchange(self, order: Exchange) -> None:
        """Exchange workers, after `check`: unlike agents, a backend does not refuse a superseded orchestrator."""
        self.may_act()
        try:
            addresses = self._backend.exchange(order.old, order.new)
        except BackendError as exc:
            self._facts.append(ExchangeFailed(exc))
            return
        self._addresses.update(zip(order.new, addresses, strict=True))
        self._facts.append(Exchanged(tuple(address.host for address in addresses)))

    # -- the end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Destroy every worker of the phase, also those of earlier orchestrators. Idempotent.

        Once they belong to another orchestrator, only disconnect.
        """
        self.hang_up()
        with suppress(LeaseLostError):
            self.may_act()
            self._backend.destroy([found.worker for found in self._backend.find()])

    def hang_up(self) -> None:
        """Disconnect from all agents, which keep running. Idempotent."""
        for number in [*self._links, *self._reaching]:
            self._hang_up(number)
        self._machine.let_go()
        self._selector.close()
