"""What is resumed when an agent has been reached again: pure, without agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from heard import heard

from prefect_ft.supervisor.conversation import Conversation, Resumed
from prefect_ft.supervisor.events import Attached, Call, Event, Exited, Started

FIRST, SECOND = (1, 0, 1), (1, 0, 2)
END = {"code": 0, "signal": None, "t_ns": 7}
START = ("start", {"token": SECOND, "ranks": {0: {}, 1: {}}})
STOP = ("stop", {"token": FIRST, "grace_s": 0, "complete": False})


def attached(token: Sequence[int], running: Sequence[int] = (), **exits: Mapping[str, Any]) -> Attached:
    ends = {name.removeprefix("r"): end for name, end in exits.items()}
    return heard("attached", token=token, running=[*running], exits=ends)


def call(token: Sequence[int]) -> Call:
    return heard("call", token=token)


def exited(token: Sequence[int], rank: int, **end: Any) -> Exited:
    return heard("exited", token=token, rank=rank, **{**END, **end})


def started(token: Sequence[int]) -> Started:
    return heard("started", token=token)


def conversation(*orders: tuple[str, Mapping[str, Any]], then: Event | None = None) -> Conversation:
    found = Conversation()
    found.hear(attached((0, -1, 0)))
    found.hear(started(FIRST))
    for order, fields in orders:
        found.ask(order, fields)
    if then is not None:
        found.hear(then)
    return found


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        pytest.param(
            conversation(), attached(FIRST, [0]), Resumed([call(FIRST)], None), id="nothing-was-missed"
        ),
        pytest.param(
            conversation(),
            attached(FIRST, [2], r1=END, r0={**END, "t_ns": 3}),
            Resumed([call(FIRST), exited(FIRST, 0, t_ns=3), exited(FIRST, 1)], None),
            id="exits-in-their-order",
        ),
        pytest.param(
            conversation(STOP), attached(FIRST), Resumed([call(FIRST)], STOP), id="a-stop-is-ordered-again"
        ),
        pytest.param(
            conversation(STOP, then=heard("stopped", token=FIRST)),
            attached(FIRST),
            Resumed([call(FIRST)], None),
            id="not-one-that-was-answered",
        ),
        pytest.param(
            conversation(("checkpoint", {"token": FIRST, "signal": None})),
            attached(FIRST),
            Resumed([call(FIRST)], None),
            id="nor-one-that-has-no-answer",
        ),
        pytest.param(
            conversation(START),
            attached(FIRST),
            Resumed([call(FIRST)], START),
            id="a-start-that-did-not-come",
        ),
        pytest.param(
            conversation(START),
            attached(SECOND, [0], r1=END),
            Resumed([started(SECOND), call(SECOND), exited(SECOND, 1)], None),
            id="a-start-whose-answer-did-not-come",
        ),
        pytest.param(conversation(START), attached(SECOND), None, id="a-start-that-failed-unheard"),
        pytest.param(conversation(), attached(SECOND, [0, 1]), None, id="a-start-that-nobody-ordered"),
        pytest.param(conversation(STOP), attached((0, -1, 0)), None, id="another-agent"),
    ],
)
def test_how_a_conversation_is_resumed(before: Conversation, now: Attached, expected: Resumed | None) -> None:
    assert before.resumed(now) == expected


def test_output_is_had_up_to_the_last_piece_in_bytes() -> None:
    found = conversation()
    assert found.have == {}
    for offset, text in ((0, "one\n"), (4, "zwö\udc80\n")):
        found.hear(heard("output", token=FIRST, rank=3, offset=offset, text=text))
    assert found.have == {3: 4 + 6}
    found.ask(*START)
    assert found.have == {}
