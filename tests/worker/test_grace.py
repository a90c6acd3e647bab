"""The grace of a stop: for all that got SIGTERM, also where a rank's first process ends before it; for nothing else."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path

import pytest
from agent_fixtures import StartAgent
from agents import AgentClient, Gate, script

from prefect_ft.heartbeat import NOTICE_VARIABLE

LONG_S = 1000

SAVES = """
import os, signal, sys
def save(*_):
    {first}
    print("told")
    open("gate" + os.environ["RANK"]).read()
    print("saved")
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("up")
while True:
    signal.pause()
"""


def below_a_shell(code: str) -> list[str]:
    """A command like `bash train.sh`: the shell starts Python, and ends at once when it gets SIGTERM."""
    return ["sh", "-c", f"{shlex.quote(sys.executable)} -u -c {shlex.quote(code)}; echo over"]


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate0")


def stopping(client: AgentClient, tmp_path: Path, first: str = "pass") -> None:
    """Have a rank told to end whose shell has ended, and whose trainer saves."""
    client.start(below_a_shell(SAVES.format(first=first)), cwd=str(tmp_path))
    client.expect_printed("up")
    client.say("stop", token=[1, 0, 1], grace_s=LONG_S, complete=False)
    assert client.expect("exited")["signal"] == signal.SIGTERM
    client.expect_printed("told")


@pytest.mark.parametrize("first", ["pass", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"], ids=["", "once"])
def test_what_a_shell_started_has_the_grace_too(
    client: AgentClient, tmp_path: Path, gate: Gate, first: str
) -> None:
    stopping(client, tmp_path, first)
    gate.open()
    client.expect("stopped")
    assert client.printed() == b"up\ntold\nsaved\n"


def test_it_lasts_until_the_last_has_ended(client: AgentClient, tmp_path: Path, gate: Gate) -> None:
    gates = [gate, Gate(tmp_path / "gate1")]
    client.start(below_a_shell(SAVES.format(first="pass")), cwd=str(tmp_path), ranks=2)
    for rank in (0, 1):
        client.expect_printed("up", rank)
    client.say("stop", token=[1, 0, 1], grace_s=LONG_S, complete=False)
    for rank in (1, 0):
        client.expect_printed("told", rank)
        gates[rank].open()
        client.expect_printed("saved", rank)
    client.expect("stopped")


def test_a_stop_that_is_repeated_leaves_the_grace(client: AgentClient, tmp_path: Path, gate: Gate) -> None:
    stopping(client, tmp_path)
    client.say("stop", token=[1, 0, 1], grace_s=LONG_S, complete=False)
    assert client.says_nothing(0.05)
    gate.open()
    client.expect("stopped")
    assert client.printed() == b"up\ntold\nsaved\n"


@pytest.mark.parametrize("grace_s", [0, 0.05], ids=["at-once", "soon"])
@pytest.mark.usefixtures("gate")
def test_a_stop_with_less_grace_overtakes_it(client: AgentClient, tmp_path: Path, grace_s: float) -> None:
    stopping(client, tmp_path)
    assert client.stop(grace_s=grace_s)["stuck"] == []
    assert client.printed().split() == [b"up", b"told"]


LEFT_BEHIND = {
    "ends-by-it": "sleep 1000 &",
    "ignores-it": "(trap '' TERM; exec sleep 1000) &",
    "in-a-session-of-its-own": "setsid --fork sh -c \"trap 'true' TERM; echo up; while :; do sleep 1000; done\"",
}


@pytest.mark.parametrize("how", LEFT_BEHIND.values(), ids=LEFT_BEHIND)
def test_what_does_not_react_is_not_waited_for(client: AgentClient, how: str) -> None:
    client.start(["sh", "-c", f"{how} echo up; sleep 1000; true"])
    client.expect_printed("up")
    assert client.stop(grace_s=LONG_S)["stuck"] == []


def test_an_agent_that_is_to_leave_leaves_it(start_agent: StartAgent, tmp_path: Path, gate: Gate) -> None:
    agent = start_agent(notice_s=LONG_S)
    client = agent.attached()
    stopping(client, tmp_path)
    agent.process.terminate()
    client.expect("leaving")
    client.close()
    gate.open()
    assert agent.process.wait(30) == 0
    assert b"saved" in (agent.home / "io" / "1-0.log").read_bytes()


FORKS = """
import os, signal
from prefect_ft.heartbeat import beat
beat(step=1)
end, other_end = os.pipe()
if os.fork() == 0:
    print("up")
    os.read(end, 1)
while True:
    signal.pause()
"""


def test_what_a_beating_rank_has_forked_ends_with_it_under_a_scheduler(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although its read, which no signal interrupts, lasts."""
    monkeypatch.setenv(NOTICE_VARIABLE, "1")
    client = start_agent().attached()
    client.start(script(FORKS), **{NOTICE_VARIABLE: "1"})
    client.expect_printed("up")
    assert client.stop(grace_s=LONG_S)["stuck"] == []
