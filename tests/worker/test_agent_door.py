"""Who may give orders to an agent, and that nobody else can disturb it."""

from __future__ import annotations

import struct

import pytest
from agent_fixtures import LivingWorker, StartAgent
from agents import AgentClient, address_of, script

from prefect_ft.worker import frames
from prefect_ft.worker.lobby import MAX_STRANGERS
from prefect_ft.worker.peer import STRANGER_MAX_FRAME

WAIT = "import signal; print('up', flush=True); signal.pause()"


PATIENT = {"lobby.py": "STRANGER_TIMEOUT_S = 1000.0"}
"""Does not show strangers out because of the time."""


def refused(event: dict) -> str:
    assert event["ev"] == "refused"
    return event["why"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"version": 2}, "this agent speaks protocol version 1", id="another-version"),
        pytest.param({"run": "run-2"}, "this agent belongs to another run", id="another-run"),
        pytest.param({"key": "Secret"}, "wrong key", id="wrong-key"),
        pytest.param({"key": ""}, "wrong key", id="no-key"),
        pytest.param({"key": "\ud800"}, "wrong key", id="a-key-that-is-no-text"),
        pytest.param({"epoch": "1"}, "attach: epoch must be int", id="wrong-type"),
        pytest.param({"have": [1]}, "attach: have must be {rank: int}", id="no-offsets"),
        pytest.param({"have": {"x": 1}}, "attach: have must be {rank: int}", id="no-rank"),
    ],
)
def test_who_is_refused_is_told_why_and_shown_out(start_agent: StartAgent, changes: dict, why: str) -> None:
    agent = start_agent(faults=PATIENT)
    stranger = agent.client()
    assert refused(stranger.attach(**changes)) == why
    assert stranger.hear_to_the_end()[0]["op"] == "attach"
    assert agent.attached().stop()["ev"] == "stopped"


@pytest.mark.parametrize("op", ["start", "stop", "choose", "leave"])
def test_nobody_gives_orders_before_attaching(agent: LivingWorker, op: str) -> None:
    stranger = agent.client()
    fields = {"limit": None, "avoid": [], "deaths": [], "grace_s": 0, "complete": False}
    start = {"command": ["true"], "cwd": "/", "env": {}, "ranks": {}, "note": {}}
    stranger.say(op, token=[1, 0, 1], **fields, **start)
    assert refused(stranger.expect("refused")) == "attach first"
    assert agent.attached().stop()["ev"] == "stopped"


GARBAGE = {
    "noise": b"\x00\x00\x00\x04zzzz",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "too-long": struct.pack(">I", frames.MAX_FRAME + 1),
    "too-long-for-a-stranger": struct.pack(">I", STRANGER_MAX_FRAME + 1),
    "a-list": frames._LENGTH.pack(2) + b"[]",
    "too-deep": frames._LENGTH.pack(50_000) + b"[" * 50_000,
    "nan": frames._LENGTH.pack(14) + b'{"epoch": NaN}',
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage_ends_the_connection_and_nothing_else(start_agent: StartAgent, data: bytes) -> None:
    agent = start_agent(faults=PATIENT)
    client = agent.attached()
    stranger = agent.client()
    stranger.say_bytes(data)
    assert stranger.hear_to_the_end() == []
    assert client.stop()["ev"] == "stopped"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({}, "no such order: None"),
        ({"op": "dance"}, "no such order: 'dance'"),
        ({"op": ["stop"]}, "no such order: \\['stop'\\]"),
        ({"op": "stop"}, "stop: token is missing"),
        ({"op": "stop", "token": [1, 0, 1], "grace_s": "soon", "complete": False}, "grace_s must be seconds"),
        ({"op": "stop", "token": [1, 0, 1], "grace_s": -1, "complete": False}, "grace_s must be seconds"),
        ({"op": "stop", "token": [1, 0], "grace_s": 0, "complete": False}, "token must be"),
        ({"op": "stop", "token": [1, 0, True], "grace_s": 0, "complete": False}, "token must be"),
        (
            {"op": "start", "token": [1, 0, 1], "command": [], "cwd": "/", "env": {}, "ranks": {}},
            "command must",
        ),
        (
            {"op": "start", "token": [1, 0, 1], "command": "true", "cwd": "/", "env": {}, "ranks": {}},
            "command",
        ),
        (
            {"op": "start", "token": [1, 0, 1], "command": ["a"], "cwd": "/", "env": {"A": 1}, "ranks": {}},
            "env",
        ),
        ({"op": "start", "token": [1, 0, 1], "command": ["a"], "cwd": 0, "env": {}, "ranks": {}}, "cwd must"),
        (
            {"op": "start", "token": [1, 0, 1], "command": ["a"], "cwd": "/", "env": {}, "ranks": {"-1": {}}},
            "ranks",
        ),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_and_the_agent_goes_on(
    client: AgentClient, message: dict, why: str
) -> None:
    client.say_bytes(frames.encode(message))
    import re

    assert re.search(why, refused(client.expect("refused")))
    assert client.start(script("print('fine')"))["ev"] == "started"
    assert client.stop()["ev"] == "stopped"


def test_frames_may_come_in_pieces(agent: LivingWorker) -> None:
    client = agent.client()
    fields = {"version": 1, "run": "run-1", "key": "secret", "epoch": 1, "have": {}}
    for byte in frames.encode({"op": "attach", **fields}):
        client.say_bytes(bytes([byte]))
    client.expect("attached")
    client.stop()


def test_half_a_frame_holds_up_nobody(agent: LivingWorker) -> None:
    stranger = agent.client()
    stranger.say_bytes(frames.encode({"op": "attach", "epoch": 1})[:-3])
    assert agent.attached().stop()["ev"] == "stopped"


def test_of_many_who_say_nothing_the_oldest_have_to_go(agent: LivingWorker, client: AgentClient) -> None:
    strangers = [agent.client() for _ in range(MAX_STRANGERS + 3)]
    assert [stranger.hear_to_the_end() for stranger in strangers[:3]] == [[], [], []]
    assert all(stranger.says_nothing(0) for stranger in strangers[3:])
    assert client.stop()["ev"] == "stopped"


# -- fencing ----------------------------------------------------------------------------------------


def test_a_higher_epoch_takes_over(agent: LivingWorker) -> None:
    old = agent.attached(epoch=1)
    old.start(script(WAIT))
    old.expect_printed("up")
    new = agent.attached(epoch=2)
    assert new.expect_attached()["running"] == [0]
    assert old.hear_to_the_end()[-1] == {"ev": "superseded", "token": [1, 0, 1], "epoch": 2}
    assert new.stop()["ev"] == "stopped"


def test_a_lower_epoch_is_refused(agent: LivingWorker) -> None:
    new = agent.attached(epoch=2)
    late = agent.client()
    assert refused(late.attach(epoch=1)) == "fenced: an orchestrator of epoch 2 has taken over"
    assert late.heard[-1]["epoch"] == 2
    assert new.stop()["ev"] == "stopped"


def test_the_same_epoch_replaces_its_own_connection(agent: LivingWorker) -> None:
    before = agent.attached(epoch=1)
    after = agent.attached(epoch=1)
    assert "superseded" not in [event["ev"] for event in before.hear_to_the_end()]
    assert after.stop()["ev"] == "stopped"


def test_an_epoch_is_remembered_when_its_orchestrator_has_gone(agent: LivingWorker) -> None:
    agent.attached(epoch=2).close()
    assert refused(agent.client().attach(epoch=1)).startswith("fenced")


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ([3, 0, 4], "fenced: token [3, 0, 4] is not above [3, 0, 4]"),
        ([3, 0, 3], "fenced: token [3, 0, 3] is not above [3, 0, 4]"),
        ([2, 0, 5], "fenced: token [2, 0, 5] is not of epoch 3"),
        ([4, 0, 5], "fenced: token [4, 0, 5] is not of epoch 3"),
    ],
)
def test_a_start_must_be_newer_than_all_that_was_seen(
    agent: LivingWorker, token: list[int], why: str
) -> None:
    client = agent.attached(epoch=3)
    client.start(["true"], attempt=4)
    client.stop(4)
    client.say("start", token=token, command=["true"], cwd="/", env={}, ranks={"0": {}}, note={})
    assert refused(client.expect("refused")) == why
    assert client.start(["true"], attempt=5)["ev"] == "started"
    client.stop(5)


def test_a_late_stop_of_an_earlier_attempt_ends_nothing(client: AgentClient) -> None:
    client.start(["true"], attempt=1)
    client.stop(1)
    client.start(script(WAIT), attempt=2)
    client.expect_printed("up")
    assert refused(client.stop(1)).startswith("fenced")
    assert [event["ev"] for event in client.heard if event["token"] == [1, 0, 2]].count("exited") == 0
    assert client.stop(2)["ev"] == "stopped"


def test_two_attempts_never_run_at_once(client: AgentClient) -> None:
    client.start(script(WAIT), attempt=1)
    assert refused(client.start(script(WAIT), attempt=2)) == "an attempt is running: stop it first"
    client.stop(1)
    assert client.start(["true"], attempt=2)["ev"] == "started"
    client.stop(2)


# -- time and space ---------------------------------------------------------------------------------


def test_who_says_nothing_for_too_long_is_shown_out(start_agent: StartAgent) -> None:
    agent = start_agent(faults={"lobby.py": "STRANGER_TIMEOUT_S = 0.1"})
    client = agent.attached()
    strangers = [AgentClient(address_of(agent.home)) for _ in range(3)]
    assert [stranger.hear_to_the_end() for stranger in strangers] == [[], [], []]
    for stranger in strangers:
        stranger.close()
    assert client.stop()["ev"] == "stopped"


def test_who_never_reads_its_answers_is_disconnected(start_agent: StartAgent) -> None:
    """The agent's memory is not for those who do not listen."""
    agent = start_agent(faults={"peer.py": "MAX_BACKLOG = 100_000"})
    deaf = agent.attached()

    def ask_on_and_on() -> None:
        for _ in range(100_000):
            deaf.say("dance")

    with pytest.raises(ConnectionError):
        ask_on_and_on()
    assert agent.attached(epoch=2).stop()["ev"] == "stopped"
