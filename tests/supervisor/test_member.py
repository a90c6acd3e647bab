"""One agent as the orchestrator sees it: each fact in each state, and exactly what is ordered then."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from heard import heard

from prefect_ft.backends.base import Worker
from prefect_ft.errors import AgentError, LeaseLostError, NewerFormatError
from prefect_ft.supervisor.events import Call, Lost, Stopped
from prefect_ft.supervisor.member import (
    Broke,
    Connect,
    Connected,
    Deliver,
    HangUp,
    Heard,
    Member,
    Send,
    Unreachable,
)

WORKER = Worker(number=2, system="s2", epoch=3, decision=1)
INTRODUCTION = {"version": 1, "run": "r", "key": "k", "epoch": 3}
LOST = Lost(system_answers=True, evidence=None)
FIRST = (3, 0, 1)
STOP = ("stop", {"token": FIRST, "grace_s": 0.0, "complete": False})
ATTACHED = heard("attached", token=FIRST)


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    """Nothing is started here."""


def made() -> Member:
    return Member(
        WORKER, introduction=INTRODUCTION, new_link=itertools.count(1).__next__, loss=lambda _: LOST
    )


def connecting() -> Member:
    member = made()
    assert member.connect() == [Connect(WORKER, 1)]
    return member


def attaching() -> Member:
    member = connecting()
    assert member.handle(Connected(2, 1), 0.0) == [Send(2, 1, "attach", {**INTRODUCTION, "have": {}})]
    return member


def attached() -> Member:
    member = attaching()
    assert member.handle(Heard(2, 1, ATTACHED), 0.0) == [Deliver(2, ATTACHED)]
    return member


def regaining() -> Member:
    member = attached()
    assert member.handle(Broke(2, 1), 0.0) == [HangUp(2, 1), Connect(WORKER, 2, again=True)]
    return member


def reattaching() -> Member:
    member = regaining()
    assert member.handle(Connected(2, 2), 0.0) == [Send(2, 2, "attach", {**INTRODUCTION, "have": {}})]
    return member


STATES: dict[str, Callable[[], Member]] = {
    each.__name__: each for each in (connecting, attaching, attached, regaining, reattaching)
}


@pytest.mark.parametrize("name", STATES)
def test_each_state_is_come_to_and_says_what_can_be_expected(name: str) -> None:
    member = STATES[name]()
    assert member.state == name
    assert member.is_present == (name != "connecting")
    assert member.is_spoken_with == (name in ("attaching", "attached"))
    assert member.answer(type(ATTACHED)) == (
        ATTACHED if name in ("attached", "regaining", "reattaching") else None
    )


GONE = [Deliver(2, LOST)]
CALL = Call(token=FIRST, inside=(), excused=())
LET_IN_AGAIN = [Deliver(2, ATTACHED), Deliver(2, CALL)]
CASES: list[Any] = [
    pytest.param(connecting, Unreachable(2, 1, "no route"), [], "gone", id="never-reached"),
    pytest.param(attaching, Broke(2, 1), [HangUp(2, 1), *GONE], "gone", id="breaks-before-it-lets-us-in"),
    pytest.param(regaining, Unreachable(2, 2, "refused"), GONE, "gone", id="is-not-there-any-more"),
    pytest.param(reattaching, Broke(2, 2), [HangUp(2, 2), *GONE], "gone", id="breaks-again-before-it-lets-us-in"),
    pytest.param(reattaching, Heard(2, 2, ATTACHED), LET_IN_AGAIN, "attached", id="lets-us-in-again"),
    pytest.param(
        reattaching, Heard(2, 2, heard("attached", token=(3, 0, 9))), [HangUp(2, 2), *GONE], "gone",
        id="knows-nothing-of-it",
    ),
    pytest.param(attached, Heard(2, 1, CALL), [Deliver(2, CALL)], "attached", id="reports"),
    pytest.param(attached, Broke(2, 7), [], "attached", id="an-older-connection"),
    pytest.param(regaining, Heard(2, 1, CALL), [], "regaining", id="heard-too-late"),
    pytest.param(regaining, Connected(2, 1), [], "regaining", id="connected-too-late"),
    pytest.param(made, Connected(2, 0), [], "gone", id="never-asked-for"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "fact", "orders", "then"), CASES)
def test_what_follows_a_fact(state: Callable[[], Member], fact: Any, orders: list[Any], then: str) -> None:
    member = state()
    assert member.handle(fact, 5.0) == orders
    assert member.state == then
    if then == "gone":
        assert (member.is_present, member.is_sampling, member.is_ending) == (False, False, False)


def test_why_it_is_gone() -> None:
    never, since = connecting(), attaching()
    never.handle(Unreachable(2, 1, "no route"), 0.0)
    since.handle(Broke(2, 1), 0.0)
    assert never.why_gone == "its agent cannot be reached: no route"
    assert since.why_gone == "its agent is gone"


@pytest.mark.parametrize(("name", "is_sent"), [("attaching", True), ("attached", True), ("regaining", False)])
def test_an_order_is_sent_to_who_is_spoken_with(name: str, is_sent: bool) -> None:
    member = STATES[name]()
    assert member.ask(*STOP) == ([Send(2, 1, *STOP)] if is_sent else [])


def test_an_order_that_was_not_answered_is_given_again_and_one_that_was_is_not() -> None:
    member = attached()
    member.ask(*STOP)
    member.handle(Broke(2, 1), 0.0)
    member.handle(Connected(2, 2), 0.0)
    assert member.handle(Heard(2, 2, ATTACHED), 0.0) == [*LET_IN_AGAIN, Send(2, 2, *STOP)]
    stopped = heard("stopped", token=FIRST, port=7)
    assert member.handle(Heard(2, 2, stopped), 0.0) == [Deliver(2, stopped)]
    assert (member.answer(Stopped), member.meeting) == (stopped, stopped)
    member.handle(Broke(2, 2), 0.0)
    member.handle(Connected(2, 3), 0.0)
    assert member.handle(Heard(2, 3, ATTACHED), 0.0) == LET_IN_AGAIN


def test_what_is_asked_anew_has_no_answer_yet() -> None:
    member = attached()
    member.handle(Heard(2, 1, heard("stopped", token=FIRST)), 0.0)
    member.ask(*STOP)
    assert member.answer(Stopped) is None


def test_a_watch_holds_over_connections_until_the_next_start() -> None:
    member, watch = attached(), {"token": FIRST, "period_s": 2.0}
    sample = heard("sample", token=FIRST)
    assert not member.is_sampling
    member.handle(Heard(2, 1, sample), 0.0)
    assert member.is_sampling
    assert member.ask("watch", watch) == [Send(2, 1, "watch", watch)]
    member.handle(Broke(2, 1), 0.0)
    member.handle(Connected(2, 2), 0.0)
    assert member.handle(Heard(2, 2, ATTACHED), 0.0) == [*LET_IN_AGAIN, Send(2, 2, "watch", watch)]
    start = {"token": (3, 0, 2), "ranks": {}}
    member.ask("start", start)
    member.handle(Heard(2, 2, heard("started", token=(3, 0, 2))), 0.0)
    member.handle(Broke(2, 2), 0.0)
    member.handle(Connected(2, 3), 0.0)
    orders = member.handle(Heard(2, 3, heard("attached", token=(3, 0, 2))), 0.0)
    assert [order for order in orders if isinstance(order, Send)] == []


def test_an_agent_that_ends_the_attempt_by_itself() -> None:
    member = attached()
    member.handle(Heard(2, 1, heard("exited", token=FIRST, code=1, ends=False)), 0.0)
    assert not member.is_ending
    member.handle(Heard(2, 1, heard("exited", token=FIRST, code=1, ends=True)), 0.0)
    assert member.is_ending
    member.expect(*STOP)
    member.handle(Broke(2, 1), 0.0)
    assert not member.is_ending
    member.handle(Connected(2, 2), 0.0)
    again = member.handle(Heard(2, 2, ATTACHED), 0.0)
    assert again[-1] == Send(2, 2, *STOP)


def test_output_is_had_where_it_came_last() -> None:
    member = attached()
    member.handle(Heard(2, 1, heard("output", token=FIRST, rank=4, offset=10, text="abc")), 6.5)
    assert member.printed_s == 6.5
    member.handle(Broke(2, 1), 7.0)
    (attach,) = member.handle(Connected(2, 2), 8.0)
    assert attach == Send(2, 2, "attach", {**INTRODUCTION, "have": {4: 13}})
    member.handle(Heard(2, 2, ATTACHED), 9.0)
    member.handle(Heard(2, 2, heard("excerpt", token=FIRST)), 9.5)
    assert member.printed_s == 9.5


def test_letting_go() -> None:
    member = attached()
    assert member.let_go() == [HangUp(2, 1)]
    assert member.let_go() == []
    assert member.handle(Heard(2, 1, CALL), 0.0) == []


@pytest.mark.parametrize(
    ("event", "error", "words"),
    [
        (heard("superseded", epoch=4), LeaseLostError, "an orchestrator of epoch 4 has taken over worker 2"),
        (heard("refused", op="stop", why="w", epoch=4), LeaseLostError, "worker 2 obeys an orchestrator of epoch 4"),
        (heard("refused", op="stop", why="not now", epoch=3), AgentError, "worker 2 refused stop: not now"),
        (
            heard("refused", op="attach", why="v", epoch=3, version=9, release="7.0"), NewerFormatError,
            r"the agent of worker 2 speaks version 9 of the protocol.*7\.0",
        ),
        (heard("refused", op="start", why="v", epoch=3, version=9), AgentError, "worker 2 refused start: v"),
        (heard("refused", op="attach", why="wrong key", epoch=3, version=1), AgentError, "refused attach: wrong key"),
    ],
)  # fmt: skip
def test_an_agent_that_does_not_obey_ends_everything(event: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        attached().handle(Heard(2, 1, event), 0.0)
