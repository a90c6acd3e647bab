"""An agent that is told to go while ranks run: they have the time that there is, and it is told."""

from __future__ import annotations

import os
import signal
import time

import pytest
from agent_fixtures import StartAgent

LONG_S = 3600.0

TRAIN = """
import time
from prefect_ft import heartbeat
print("up", flush=True)
while not heartbeat.should_checkpoint(): time.sleep(0.01)
print("asked", flush=True)
time.sleep(1000)
"""
COMMAND = ["python3", "-S", "-u", "-c", TRAIN]


def test_who_is_attached_is_told_and_sees_to_the_ranks(start_agent: StartAgent) -> None:
    agent = start_agent(notice_s=LONG_S)
    client = agent.attached()
    client.start(COMMAND)
    client.expect_printed("up")
    agent.process.terminate()
    assert 0 < client.expect("leaving")["within_s"] <= LONG_S
    client.say("checkpoint", token=client.token(1), signal=None)
    client.expect_printed("asked")
    client.stop()
    assert agent.process.poll() is None  # who is attached may have more to say
    client.close()
    assert agent.process.wait(30) == 0


def test_where_nobody_is_attached_ranks_are_asked_and_whoever_comes_is_told(start_agent: StartAgent) -> None:
    agent = start_agent(notice_s=LONG_S)
    client = agent.attached()
    client.start(COMMAND)
    client.expect_printed("up")
    client.close()
    agent.process.terminate()
    while b"asked" not in (agent.home / "io" / "1-0.log").read_bytes():
        time.sleep(0.01)
    later = agent.attached(epoch=2)
    assert 0 < later.expect("leaving")["within_s"] <= LONG_S
    later.expect_printed("asked")
    later.stop()


def test_the_time_that_there_is_ends(start_agent: StartAgent) -> None:
    agent = start_agent(notice_s=0.2)
    client = agent.attached()
    client.start(["sleep", "1000"])
    agent.process.terminate()
    assert client.hear_to_the_end()[-1]["ev"] == "leaving"
    assert agent.process.wait(30) == 0


def test_who_is_told_so_twice_leaves_at_once(start_agent: StartAgent) -> None:
    agent = start_agent(notice_s=LONG_S)
    client = agent.attached()
    client.start(["sleep", "1000"])
    agent.process.terminate()
    client.expect("leaving")
    agent.process.terminate()
    client.hear_to_the_end()
    assert agent.process.wait(30) == 0


@pytest.mark.parametrize(
    ("notice_s", "runs", "number"),
    [
        pytest.param(LONG_S, False, signal.SIGTERM, id="nothing-runs"),
        pytest.param(0.0, True, signal.SIGTERM, id="no-time"),
        pytest.param(LONG_S, True, signal.SIGINT, id="interrupted"),
    ],
)
def test_it_leaves_at_once(
    start_agent: StartAgent, notice_s: float, runs: bool, number: signal.Signals
) -> None:
    agent = start_agent(notice_s=notice_s)
    client = agent.attached()
    if runs:
        client.start(["sleep", "1000"])
    os.kill(agent.process.pid, number)
    assert "leaving" not in {event["ev"] for event in client.hear_to_the_end()}
    assert agent.process.wait(30) == 0
