"""Carries out what a state machine orders, and brings it the facts: sockets, threads, the clock, the infrastructure.

Decides nothing. One thread acts; what other threads have found out comes to it by `Calls`.
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
from prefect_ft.supervisor.gang import Exchange, Exchanged, ExchangeFailed, Fact, Order
from prefect_ft.supervisor.link import Link, LinkLostError
from prefect_ft.supervisor.masking import Mask
from prefect_ft.supervisor.member import Broke, Connect, Connected, HangUp, Heard, Send, Unreachable
from prefect_ft.supervisor.reaching import Reaching
from prefect_ft.supervisor.stopping import StopRequest

MOST_CONNECTS_AT_ONCE = 32


class Machine(Protocol):
    """What can be driven: a lifecycle, or a crew."""

    @property
    def due_s(self) -> float | None:
        """When `handle` has to be called though nothing is known, by the driver's clock; None: never."""

    @property
    def fence(self) -> LeaseLostError | None:
        """Why nothing may be done to workers any more."""

    def handle(self, facts: Sequence[Fact], now_s: float) -> list[Order]:
        """Take what is known now, and return what is to be done."""

    def let_go(self) -> None:
        """Let go of all agents."""


class Driver:
    """Drives one machine. `calls` are made while facts are waited for."""

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
        """`check` is called before anything is done to workers; it raises LeaseLostError if they are another's."""
        self._machine, self._backend = machine, backend
        self._stop, self._calls, self._mask, self._check = stop, calls, mask, check
        self._selector = selectors.DefaultSelector()
        self._selector.register(stop, selectors.EVENT_READ)
        self._selector.register(calls, selectors.EVENT_READ)
        self._addresses: dict[Worker, Address] = {}
        self._links: dict[int, Link] = {}
        """By number, the connections that are open."""
        self._reaching: dict[int, Reaching] = {}
        self._facts: list[Fact] = []
        """What is known and the machine has not been told yet."""

    def now_s(self) -> float:
        """Return the time by the driver's clock."""
        return time.monotonic()

    def found(self, worker: Worker, address: Address) -> None:
        """Take note of where the agent of a worker is that was there before."""
        self._addresses[worker] = address

    def run(self, until: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Drive the machine until the condition holds, or the time is over; raises what ends the phase."""
        deadline_s = None if timeout_s is None else self.now_s() + timeout_s
        self._tell()
        while not until():
            left_s = None if deadline_s is None else deadline_s - self.now_s()
            if left_s is not None and left_s <= 0:
                return
            self._wait(left_s)
            self._tell()

    def _tell(self) -> None:
        """Tell the machine what is known, and carry out what it orders, until nothing more follows."""
        while True:
            facts, self._facts = self._facts, []
            orders = self._machine.handle(facts, self.now_s())
            if orders:
                self.may_act()
            for kind, group in groupby(orders, key=type):
                if kind is Connect:
                    self._connect([order for order in group if isinstance(order, Connect)])
                    continue
                for order in group:
                    self._carry_out(order)
            if not self._facts and not orders:
                return

    def may_act(self) -> None:
        """Raise LeaseLostError if the workers are another orchestrator's."""
        if self._machine.fence is not None:
            raise self._machine.fence
        self._check()

    def _wait(self, timeout_s: float | None) -> None:
        """Wait until something is known, `timeout_s` is over, or the machine's own time has come."""
        if self._stop.lost is not None:
            raise self._stop.lost
        due_s = self._machine.due_s
        if due_s is not None:
            left_s = max(0.0, due_s - self.now_s())
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._stop:
                self._selector.unregister(self._stop)  # stays readable; `wanted` says the rest
            elif key.fileobj is self._calls:
                self._calls.make()
            else:
                self._facts += self._received(key.data)

    def _received(self, number: int) -> Iterator[Fact]:
        link = self._links.get(number)
        if link is None:
            return
        try:
            for event in link.receive():
                yield Heard(link.worker.number, number, event)
        except LinkLostError:
            yield Broke(link.worker.number, number)

    # -- orders -------------------------------------------------------------------------------------

    def _carry_out(self, order: Order) -> None:
        match order:
            case Connect():
                self._connect([order])
            case Send():
                self._send(order)
            case HangUp():
                self._hang_up(order.link)
            case Exchange():
                self._exchange(order)
            case _:
                assert_never(order)

    def _connect(self, orders: Sequence[Connect]) -> None:
        """Open connections side by side: each waits for an agent's start and handshake, or a lost node's time limit."""
        first = [order for order in orders if not order.again]
        for order in orders:
            if order.again:
                self._reach_again(order)
        if len(first) == 1:
            outcomes = [self._link_to(first[0])]
        elif first:
            with ThreadPoolExecutor(min(len(first), MOST_CONNECTS_AT_ONCE)) as pool:
                outcomes = list(pool.map(self._link_to, first))
        else:
            return
        for order, outcome in zip(first, outcomes, strict=True):
            self._reached(order, outcome)

    def _reach_again(self, order: Connect) -> None:
        self._reaching[order.link] = Reaching(
            order.worker,
            self._addresses[order.worker],
            self._mask,
            self._calls,
            lambda outcome: self._reached(order, outcome),
        )

    def _link_to(self, order: Connect) -> Link | LinkLostError:
        try:
            return Link(order.worker, self._addresses[order.worker], self._mask)
        except LinkLostError as exc:
            return exc

    def _reached(self, order: Connect, outcome: Link | LinkLostError) -> None:
        self._reaching.pop(order.link, None)
        number = order.worker.number
        if isinstance(outcome, LinkLostError):
            self._facts.append(Unreachable(number, order.link, str(outcome)))
            return
        self._links[order.link] = outcome
        self._selector.register(outcome, selectors.EVENT_READ, order.link)
        self._facts.append(Connected(number, order.link))

    def _send(self, order: Send) -> None:
        if (link := self._links.get(order.link)) is None:
            return  # it broke a moment ago, as the machine will hear
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
        """Have workers exchanged, which no agent could refuse an orchestrator whose time is over."""
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
        """Destroy every worker of the phase, whatever runs in it, those of earlier lives too. Idempotent.

        Unless they are another orchestrator's: then this one only hangs up.
        """
        self.hang_up()
        with suppress(LeaseLostError):
            self.may_act()
            self._backend.destroy([found.worker for found in self._backend.find()])

    def hang_up(self) -> None:
        """Let go of all agents; what they run goes on. Idempotent."""
        for number in [*self._links, *self._reaching]:
            self._hang_up(number)
        self._machine.let_go()
        self._selector.close()
