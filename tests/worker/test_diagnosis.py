"""Where ranks are that hang: stacks by faulthandler whatever they do, what the kernel says, nobody harmed."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from agents import AgentClient, script

BEATS = "from prefect_ft.heartbeat import beat; beat(1); print('up')\n"
IN_C = (
    "import ctypes; c = ctypes.PyDLL(None); m = bytes(64); c.pthread_mutex_lock(m)\nc.pthread_mutex_lock(m)"
)
"""PyDLL keeps the interpreter's lock."""
LOCKED = "import threading\nlock = threading.Lock(); lock.acquire()\ndef stuck(): lock.acquire()\nstuck()"
FORKS = """
import os, time
def load(): time.sleep(1000)
if os.fork() == 0: load()
def wait(): os.wait()
wait()"""


def diagnosed(client: AgentClient, timeout_s: float = 5.0) -> dict[str, Any]:
    client.say("diagnose", token=client.token(1), timeout_s=timeout_s)
    return client.expect("diagnosis")["ranks"]


@pytest.mark.parametrize(
    ("code", "frame"),
    [
        pytest.param(LOCKED, "in stuck", id="deadlock-in-python"),
        pytest.param(IN_C, 'File "<string>", line 3 in <module>', id="deadlock-in-c-with-the-lock"),
        pytest.param("def spin():\n    while True: pass\nspin()", "in spin", id="busy-loop"),
    ],
)
def test_a_rank_that_has_beaten_tells_where_it_is(client: AgentClient, code: str, frame: str) -> None:
    pid = client.start(script(BEATS + code))["pids"]["0"]
    client.expect_printed("up\n")
    found = diagnosed(client)["0"]
    assert "(most recent call first):" in found["stacks"][str(pid)]
    while frame not in found["stacks"][str(pid)]:  # it had only just said that it is up
        found = diagnosed(client)["0"]
    (process,) = found["processes"]
    assert process["pid"] == pid
    assert process["state"][0] in "RS"


def test_what_a_rank_forked_tells_too_and_separately(client: AgentClient) -> None:
    pid = client.start(script(BEATS + FORKS))["pids"]["0"]
    client.expect_printed("up\n")
    while len(stacks := diagnosed(client)["0"]["stacks"]) < 2:
        pass
    child = next(other for other in stacks if other != str(pid))
    while "in load" not in (stacks := diagnosed(client)["0"]["stacks"])[child]:
        pass
    assert "in wait" in stacks[str(pid)]
    assert "in load" not in stacks[str(pid)]


def test_who_takes_no_signal_is_sent_none(client: AgentClient) -> None:
    pid = client.start(["sleep", "1000"])["pids"]["0"]
    found = diagnosed(client)["0"]
    assert found["stacks"] == {}
    assert [(each["pid"], each["name"]) for each in found["processes"]] == [(pid, "sleep")]
    os.kill(pid, 0)


def test_a_script_that_uses_the_signal_keeps_it(client: AgentClient) -> None:
    client.start(
        script("import signal; signal.signal(57, lambda *_: print('mine'))\n" + BEATS + "signal.pause()")
    )
    client.expect_printed("up\n")
    assert diagnosed(client, 1.0)["0"]["stacks"] == {}


def test_a_stopped_rank_is_not_waited_for_longer_than_said(client: AgentClient) -> None:
    pid = client.start(script(BEATS + "import time; time.sleep(1000)"))["pids"]["0"]
    client.expect_printed("up\n")
    os.kill(pid, signal.SIGSTOP)
    found = diagnosed(client, 0.2)["0"]
    assert found["stacks"] == {}
    assert found["processes"][0]["state"].startswith("T")


def test_ranks_that_have_exited_are_not_asked(client: AgentClient) -> None:
    client.start(["sh", "-c", 'test "$RANK" = 1 || exec sleep 1000'], ranks=2)
    client.expect("exited", rank=1)
    assert list(diagnosed(client)) == ["0"]
