"""The driver alone: what a machine orders is carried out, and what becomes of it is handed back as facts.

The machine is a script, an agent one end of a pair of sockets; no process is started.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from agents import DEADLINE_S
from heard import heard

from prefect_ft.backends.base import Address, Found, Worker
from prefect_ft.errors import BackendError, LeaseLostError
from prefect_ft.supervisor.calls import Calls
from prefect_ft.supervisor.driver import MAX_CONCURRENT_CONNECTS, Driver
from prefect_ft.supervisor.masking import masking
from prefect_ft.supervisor.member import Broke, Connect, Connected, HangUp, Heard, Send, Unreachable
from prefect_ft.supervisor.roster import Exchange, Exchanged, ExchangeFailed, Fact, Order
from prefect_ft.supervisor.stopping import StopRequest
from prefect_ft.worker import frames

SOON_S = 0.02
FIELDS = {"token": [1, 0, 1], "grace_s": 2.5}
STOPPED = heard("stopped", port=7)
OUTPUT = {"ev": "output", "token": [1, 0, 1], "rank": 0, "offset": 0, "text": "key hf_abcdef\n"}


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    """Nothing is started here."""


def worker(number: int) -> Worker:
    return Worker(number=number, system=f"s{number}", epoch=1, decision=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent(Address):
    """An agent that takes connections as its test has it."""

    socket_path: Path = Path("/no/such")
    host: str = "h"
    before: Callable[[], object] = lambda: None
    """Called while a connection is being opened; may raise OSError."""
    ends: list[socket.socket] = field(default_factory=list)
    """The agent's ends of the connections."""

    def connect(self, timeout_s: float) -> socket.socket:
        self.before()
        ours, its = socket.socketpair()
        its.settimeout(DEADLINE_S)
        self.ends.append(its)
        return ours

    def say(self, message: dict[str, Any]) -> None:
        self.ends[-1].sendall(frames.encode(message))

    def hears(self) -> list[dict[str, Any]]:
        """What has been sent to it; EOFError once the driver has hung up."""
        data = self.ends[-1].recv(1 << 16)
        if not data:
            raise EOFError
        return list(frames.FrameReader().feed(data))


class Script:
    """A machine that orders what stands in its script, line by line, and keeps the facts that it gets."""

    def __init__(self) -> None:
        self.lines: list[Sequence[Order]] = []
        self.facts: list[Fact] = []
        self.times_s: list[float] = []
        """When it was asked."""
        self.due_s: float | None = None
        self.fence: LeaseLostError | None = None
        self.released = 0

    def handle(self, facts: Sequence[Fact], now_s: float) -> list[Order]:
        self.facts += facts
        self.times_s.append(now_s)
        if self.due_s is not None and now_s >= self.due_s:
            self.due_s = None
        return list(self.lines.pop(0)) if self.lines else []

    def let_go(self) -> None:
        self.released += 1


@dataclass
class Infrastructure:
    """Gives the addresses that it was given, or fails."""

    gives: list[Agent] | BackendError = field(default_factory=list)
    exchanged: list[tuple[Sequence[Worker], Sequence[Worker]]] = field(default_factory=list)
    destroyed: list[list[Worker]] = field(default_factory=list)

    def exchange(self, old: Sequence[Worker], new: Sequence[Worker]) -> list[Agent]:
        self.exchanged.append((old, new))
        if isinstance(self.gives, BackendError):
            raise self.gives
        return self.gives

    def find(self) -> list[Found]:
        return [Found(worker=worker(number), address=Agent(), result=None) for number in (3, 4)]

    def destroy(self, workers: Sequence[Worker]) -> None:
        self.destroyed.append(list(workers))


class Stage:
    """A driver, and everything around it."""

    def __init__(self) -> None:
        self.machine, self.backend = Script(), Infrastructure()
        self.stop, self.calls = StopRequest(), Calls()
        self.checks = 0
        self.lost_at: int | None = None
        """At which check the workers are another's."""
        self.agents: list[Agent] = []
        self.driver = Driver(
            self.machine,
            self.backend,  # type: ignore[arg-type]
            stop=self.stop,
            calls=self.calls,
            mask=masking(["hf_abcdef"]),
            check=self._check,
        )

    def _check(self) -> None:
        self.checks += 1
        if self.checks == self.lost_at:
            raise LeaseLostError("another's")

    def agent(self, number: int, **changes: Any) -> Agent:
        """An agent that was there before."""
        self.agents.append(Agent(**changes))
        self.driver.found(worker(number), self.agents[-1])
        return self.agents[-1]

    def connected(self, number: int = 0, link: int = 1) -> Agent:
        agent = self.agent(number)
        self.order(Connect(worker(number), link))
        assert self.facts() == [Connected(number, link)]
        return agent

    def order(self, *orders: Order) -> None:
        """Have these carried out, and what follows handed to the machine."""
        self.machine.lines.append(orders)
        self.driver.run(lambda: True)

    def facts(self, count: int = 0) -> list[Fact]:
        """The facts since the last time; waits until there are so many."""
        self.driver.run(lambda: len(self.machine.facts) >= count, DEADLINE_S)
        facts, self.machine.facts = self.machine.facts, []
        return facts

    def nothing_more(self) -> bool:
        """Whether a moment passes without a fact."""
        self.driver.run(lambda: False, SOON_S)
        return self.facts() == []

    def close(self) -> None:
        self.machine.fence = LeaseLostError("closed")
        self.driver.close()
        self.stop.close()
        self.calls.close()
        for agent in self.agents:
            for end in agent.ends:
                end.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


def refuse(why: str) -> Callable[[], None]:
    def connect() -> None:
        raise OSError(why)

    return connect


def join_reaching() -> None:
    """Wait until nobody is being reached any more."""
    for thread in threading.enumerate():
        if thread.name == "prefect-ft-reaching":
            thread.join(DEADLINE_S)


# -- connections ----------------------------------------------------------------------------------------------


def test_connections_are_opened_and_reported_in_the_order_of_the_orders(stage: Stage) -> None:
    slow = threading.Event()
    stage.agent(5, before=lambda: slow.wait(DEADLINE_S))
    stage.agent(2, before=slow.set)
    stage.agent(7, before=refuse("no route"))
    stage.order(Connect(worker(5), 11), Connect(worker(7), 13), Connect(worker(2), 12))
    assert stage.facts() == [Connected(5, 11), Unreachable(7, 13, "no route"), Connected(2, 12)]


def test_so_many_connections_are_opened_at_once_and_no_more(stage: Stage) -> None:
    all_there, now, most = threading.Barrier(MAX_CONCURRENT_CONNECTS), [], []

    def before(number: int) -> None:
        now.append(number)
        most.append(len(now))
        if number < MAX_CONCURRENT_CONNECTS:
            all_there.wait(DEADLINE_S)
        now.remove(number)

    count = MAX_CONCURRENT_CONNECTS + 8
    for number in range(count):
        stage.agent(number, before=lambda number=number: before(number))
    stage.order(*(Connect(worker(number), number) for number in range(count)))
    assert stage.facts() == [Connected(number, number) for number in range(count)]
    assert max(most) == MAX_CONCURRENT_CONNECTS


def test_an_order_is_sent_and_an_event_is_heard_without_secrets(stage: Stage) -> None:
    agent = stage.connected(5, 11)
    stage.order(Send(5, 11, "stop", FIELDS))
    assert agent.hears() == [{"op": "stop", **FIELDS}]
    agent.say(OUTPUT)
    (fact,) = stage.facts(1)
    assert fact == Heard(5, 11, heard("output", text="key *********\n"))


def test_what_several_agents_have_said_meanwhile_is_heard_of_each(stage: Stage) -> None:
    agents = [stage.connected(number, 11 + number) for number in (5, 6, 7)]
    for agent in agents:
        agent.say(OUTPUT)
    assert {(fact.worker, fact.link) for fact in stage.facts(3)} == {(5, 16), (6, 17), (7, 18)}


def test_a_connection_that_breaks_is_a_fact_of_its_worker(stage: Stage) -> None:
    agent = stage.connected(5, 11)
    agent.ends[-1].close()
    assert stage.facts(1) == [Broke(5, 11)]
    stage.order(Send(5, 11, "stop", FIELDS))
    assert Broke(5, 11) in stage.facts()


def test_an_order_that_cannot_be_sent_is_a_connection_that_broke(stage: Stage) -> None:
    stage.connected(5, 11).ends[-1].close()
    stage.order(Send(5, 11, "stop", FIELDS))
    assert stage.facts() == [Broke(5, 11)]


def test_what_is_hung_up_is_closed_and_neither_heard_nor_written_to(stage: Stage) -> None:
    agent, other = stage.connected(5, 11), stage.connected(6, 12)
    stage.order(HangUp(5, 11), HangUp(9, 99), Send(5, 11, "stop", FIELDS), Send(6, 12, "stop", FIELDS))
    assert other.hears() == [{"op": "stop", **FIELDS}]
    with pytest.raises(EOFError):
        agent.hears()
    assert stage.nothing_more()


def test_orders_are_carried_out_one_after_the_other(stage: Stage) -> None:
    """A connection that is opened and given up in one breath is closed."""
    agent = stage.agent(5)
    stage.order(Connect(worker(5), 11), HangUp(5, 11))
    with pytest.raises(EOFError):
        agent.hears()


def test_what_the_machine_orders_because_of_a_fact_is_carried_out_too(stage: Stage) -> None:
    agent = stage.agent(0)
    stage.machine.lines = [[Connect(worker(0), 1)], [Send(0, 1, "attach", {})]]
    stage.driver.run(lambda: True)
    assert agent.hears() == [{"op": "attach"}]
    assert stage.facts() == [Connected(0, 1)]


# -- connections that broke --------------------------------------------------------------------------------


def test_an_agent_is_reached_again_beside_what_else_there_is_to_do(stage: Stage) -> None:
    reached = threading.Event()
    agent = stage.agent(5, before=lambda: reached.wait(DEADLINE_S))
    stage.order(Connect(worker(5), 11, again=True))
    assert stage.facts() == []
    reached.set()
    assert stage.facts(1) == [Connected(5, 11)]
    agent.say({**OUTPUT, "text": "hf_abcdef"})
    assert stage.facts(1) == [Heard(5, 11, heard("output", text="*********"))]
    stage.order(HangUp(5, 11))
    with pytest.raises(EOFError):
        agent.hears()


def test_what_another_agent_says_in_the_same_moment_is_heard_too(stage: Stage) -> None:
    other = stage.connected(6, 12)
    stage.agent(5)
    stage.order(Connect(worker(5), 11, again=True))
    join_reaching()
    other.say(OUTPUT)
    facts = stage.facts(2)
    assert Connected(5, 11) in facts
    assert len(facts) == 2


def test_an_agent_that_is_not_there_again_is_unreachable(stage: Stage) -> None:
    stage.agent(5, before=refuse("gone"))
    other = stage.agent(6)
    stage.order(Connect(worker(5), 11, again=True), Connect(worker(6), 12))
    assert stage.facts(2) == [Connected(6, 12), Unreachable(5, 11, "gone")]
    stage.order(Send(6, 12, "stop", FIELDS))
    assert other.hears() == [{"op": "stop", **FIELDS}]


def test_an_agent_that_is_reached_when_nobody_wants_it_any_more_is_let_go(stage: Stage) -> None:
    began, reached = threading.Event(), threading.Event()
    agent = stage.agent(5, before=lambda: (began.set(), reached.wait(DEADLINE_S)))
    stage.order(Connect(worker(5), 11, again=True))
    assert began.wait(DEADLINE_S)
    stage.order(HangUp(5, 11))
    reached.set()
    join_reaching()
    with pytest.raises(EOFError):
        agent.hears()
    assert stage.nothing_more()


# -- the infrastructure ----------------------------------------------------------------------------------------


def test_workers_that_were_created_are_reached_where_they_are(stage: Stage) -> None:
    old, new = (worker(1),), (worker(0), worker(1))
    stage.agents = stage.backend.gives = [Agent(host="a"), Agent(host="b")]
    stage.order(Exchange(old, new))
    assert stage.backend.exchanged == [(old, new)]
    assert stage.facts() == [Exchanged(("a", "b"))]
    stage.order(Connect(worker(1), 1), Send(1, 1, "attach", {}))
    assert stage.agents[1].hears() == [{"op": "attach"}]


def test_an_exchange_that_fails_is_a_fact(stage: Stage) -> None:
    error = stage.backend.gives = BackendError("no room")
    stage.order(Exchange((), (worker(0),)))
    assert stage.facts() == [ExchangeFailed(error)]


def test_each_worker_that_was_created_has_an_address(stage: Stage) -> None:
    stage.backend.gives = [Agent()]
    with pytest.raises(ValueError, match="zip"):
        stage.order(Exchange((), (worker(0), worker(1))))


# -- whose the workers are -----------------------------------------------------------------------------------


def test_the_lease_is_looked_at_before_anything_is_done(stage: Stage) -> None:
    stage.driver.run(lambda: True)
    assert stage.checks == 0
    stage.agent(0)
    stage.order(Connect(worker(0), 1))
    assert stage.checks == 1
    stage.lost_at = 2
    with pytest.raises(LeaseLostError, match="another's"):
        stage.order(Exchange((), ()))
    assert stage.backend.exchanged == []


def test_the_lease_is_looked_at_again_right_before_workers_are_exchanged(stage: Stage) -> None:
    stage.lost_at = 2
    with pytest.raises(LeaseLostError):
        stage.order(Exchange((), ()))
    assert stage.backend.exchanged == []


def test_after_a_word_of_another_orchestrator_nothing_is_done(stage: Stage) -> None:
    stage.machine.fence = LeaseLostError("superseded")
    with pytest.raises(LeaseLostError, match="superseded"):
        stage.order(Exchange((), ()))
    assert (stage.backend.exchanged, stage.checks) == ([], 0)


# -- waiting -------------------------------------------------------------------------------------------------


def waited_s(
    stage: Stage, timeout_s: float | None, due_in_s: float | None, until: Callable[[], bool]
) -> float:
    stage.machine.due_s = None if due_in_s is None else stage.driver.now_s() + due_in_s
    began_s = time.monotonic()
    stage.driver.run(until, timeout_s)
    return time.monotonic() - began_s


def test_a_condition_that_holds_is_not_waited_for_but_facts_are_handed_over(stage: Stage) -> None:
    assert waited_s(stage, None, None, lambda: True) < DEADLINE_S
    assert len(stage.machine.times_s) == 1


@pytest.mark.parametrize(
    "due_in_s", [None, DEADLINE_S], ids=["machine-waits-for-nothing", "machine-waits-longer"]
)
def test_the_wait_ends_with_its_time(stage: Stage, due_in_s: float | None) -> None:
    assert SOON_S <= waited_s(stage, SOON_S, due_in_s, lambda: False) < DEADLINE_S / 2


@pytest.mark.parametrize("timeout_s", [None, DEADLINE_S], ids=["for-ever", "longer"])
def test_the_machine_is_asked_when_its_time_has_come(stage: Stage, timeout_s: float | None) -> None:
    def is_over() -> bool:
        return stage.machine.due_s is None

    assert SOON_S <= waited_s(stage, timeout_s, SOON_S, is_over) < DEADLINE_S / 2
    assert len(stage.machine.times_s) < 5


def test_where_no_time_is_set_the_wait_lasts_until_something_is_known(stage: Stage) -> None:
    agent = stage.connected(5, 11)
    speaker = threading.Timer(SOON_S, agent.say, [OUTPUT])
    speaker.start()
    stage.driver.run(lambda: bool(stage.machine.facts))
    speaker.join()
    assert len(stage.facts()) == 1


def test_a_time_that_is_over_is_not_waited_for(stage: Stage) -> None:
    stage.machine.due_s = stage.driver.now_s() + SOON_S / 2
    is_over = iter([False, True])
    asked = len(stage.machine.times_s)

    def until() -> bool:
        time.sleep(SOON_S)
        return next(is_over)

    stage.driver.run(until)
    assert len(stage.machine.times_s) == asked + 2


def test_a_time_limit_that_is_exactly_over_ends_the_wait(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage.driver, "now_s", lambda: 5.0)
    stage.driver.run(lambda: False, 0.0)
    assert stage.machine.times_s == [5.0]


def test_a_call_of_another_thread_is_made_while_the_driver_waits(stage: Stage) -> None:
    made: list[str] = []
    caller = threading.Timer(SOON_S, stage.calls.soon, [lambda: made.append(threading.current_thread().name)])
    caller.start()
    stage.driver.run(lambda: bool(made), DEADLINE_S)
    caller.join()
    assert made == [threading.current_thread().name]


def test_a_wish_to_stop_wakes_the_machine_once(stage: Stage) -> None:
    stage.stop.ask("SIGINT")
    stage.driver.run(lambda: len(stage.machine.times_s) > 1, DEADLINE_S)
    stage.machine.times_s.clear()
    stage.driver.run(lambda: False, SOON_S)
    assert len(stage.machine.times_s) < 5


def test_a_run_that_is_lost_while_it_is_waited_for_raises(stage: Stage) -> None:
    stage.stop.abandon(LeaseLostError("taken over"))
    with pytest.raises(LeaseLostError, match="taken over"):
        stage.driver.run(lambda: False, DEADLINE_S)


# -- the end -------------------------------------------------------------------------------------------------


def test_closing_destroys_every_worker_that_is_found_and_hangs_up(stage: Stage) -> None:
    agent = stage.connected()
    stage.driver.close()
    stage.driver.close()
    with pytest.raises(EOFError):
        agent.hears()
    assert stage.backend.destroyed == [[worker(3), worker(4)]] * 2
    assert stage.machine.released == 2


def test_workers_of_another_orchestrator_are_not_destroyed(stage: Stage) -> None:
    agent = stage.connected()
    stage.lost_at = 2
    stage.driver.close()
    with pytest.raises(EOFError):
        agent.hears()
    assert (stage.backend.destroyed, stage.machine.released) == ([], 1)


def test_hanging_up_leaves_workers_and_drops_what_is_being_reached(stage: Stage) -> None:
    agent = stage.connected(0, 1)
    reached = threading.Event()
    again = stage.agent(5, before=lambda: reached.wait(DEADLINE_S))
    stage.order(Connect(worker(5), 11, again=True))
    stage.driver.hang_up()
    reached.set()
    join_reaching()
    for each in (agent, again):
        with pytest.raises(EOFError):
            each.hears()
    assert stage.backend.destroyed == []
