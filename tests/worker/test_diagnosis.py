"""Where ranks are that hang: stacks by faulthandler whatever they do, what the kernel says, nobody harmed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from agent_fixtures import MakeWorker
from agents import AgentClient, processes_of, script

from prefect_ft.decide.hang.stacks import parsed
from prefect_ft.worker import processes, spy

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


def py_spy(directory: Path, code: str) -> dict[str, str]:
    """An environment in which this shell script is py-spy."""
    (directory / "py-spy").write_text(f"#!/bin/sh\n{code}\n")
    (directory / "py-spy").chmod(0o755)
    return {"PATH": f"{directory}:{os.environ['PATH']}"}


def test_a_script_that_uses_the_signal_keeps_it(make_worker: MakeWorker, tmp_path: Path) -> None:
    client = make_worker(env=py_spy(tmp_path, "echo no; exit 1")).attached()
    client.start(
        script("import signal; signal.signal(57, lambda *_: print('mine'))\n" + BEATS + "signal.pause()")
    )
    client.expect_printed("up\n")
    assert diagnosed(client)["0"]["stacks"] == {}
    client.expect_printed("mine\n")


def test_a_stopped_rank_is_not_waited_for_longer_than_said(make_worker: MakeWorker, tmp_path: Path) -> None:
    client = make_worker(env=py_spy(tmp_path, "exit 1")).attached()
    pid = client.start(script(BEATS + "import time; time.sleep(1000)"))["pids"]["0"]
    client.expect_printed("up\n")
    os.kill(pid, signal.SIGSTOP)
    found = diagnosed(client, 0.2)["0"]
    assert found["stacks"] == {}
    assert found["processes"][0]["state"].startswith("T")


@pytest.fixture
def spied(make_worker: MakeWorker) -> AgentClient:
    """Attached to an agent that has py-spy."""
    if spy.command() is None:
        pytest.skip("needs py-spy: install prefect-ft[stacks]")
    return make_worker().attached()


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("print('up'); time.sleep(1000)", id="never-beaten"),
        pytest.param("beat(1); print('up'); os.kill(os.getpid(), signal.SIGSTOP)", id="stopped"),
        pytest.param(
            "signal.signal(57, lambda *_: None); beat(1); print('up'); time.sleep(1000)", id="keeps-it"
        ),
    ],
)
def test_who_does_not_answer_is_looked_at_by_py_spy(spied: AgentClient, code: str) -> None:
    text = (
        "import os, signal, time; from prefect_ft.heartbeat import beat\ndef stuck():\n    "
        + code
        + "\nstuck()"
    )
    pid = spied.start(script(text))["pids"]["0"]
    spied.expect_printed("up\n")
    stacks = diagnosed(spied)["0"]["stacks"][str(pid)]
    assert [name for name, _, _ in parsed(stacks).frames][-2:] == ["stuck", "<module>"]


def test_a_py_spy_that_takes_for_ever_is_not_waited_for(make_worker: MakeWorker, tmp_path: Path) -> None:
    client = make_worker(env=py_spy(tmp_path, "exec sleep 1000")).attached()
    client.start(script("print('up'); import signal; signal.pause()"))
    client.expect_printed("up\n")
    assert diagnosed(client, 0.2)["0"]["stacks"] == {}
    assert [words for words in processes_of(tmp_path).values() if "sleep" in words] == []


def test_ranks_that_have_exited_are_not_asked(client: AgentClient) -> None:
    client.start(["sh", "-c", 'test "$RANK" = 1 || exec sleep 1000'], ranks=2)
    client.expect("exited", rank=1)
    assert list(diagnosed(client)) == ["0"]


def test_a_stop_ends_it_and_it_is_not_told_afterwards(make_worker: MakeWorker, tmp_path: Path) -> None:
    client = make_worker(env=py_spy(tmp_path, "exec sleep 1000")).attached()
    waits = script("print('up'); import signal; signal.pause()")
    client.start(waits)
    client.expect_printed("up\n")
    client.say("diagnose", token=client.token(1), timeout_s=60)
    client.stop()
    assert [words for words in processes_of(tmp_path).values() if "sleep" in words] == []
    client.start(waits, attempt=2)
    client.expect("came_up", what="first-line", token=client.token(2))
    assert [event for event in client.heard if event["ev"] == "diagnosis"] == []


BECOMES = """
parent = os.getpid()
if os.fork() == 0:
    while open(f"/proc/{parent}/stat").read().split()[2] != "T" or not os.path.exists(GO): pass
    os.execvp("sleep", ["sleep", "1000"])
os.kill(parent, signal.SIGSTOP)"""


def test_who_has_become_another_program_meanwhile_is_sent_none(
    make_worker: MakeWorker, tmp_path: Path
) -> None:
    client = make_worker(env=py_spy(tmp_path, "exit 1")).attached()
    go = tmp_path / "go"
    pid = client.start(script(f"import os, signal\nGO = {str(go)!r}\n{BEATS}{BECOMES}"))["pids"]["0"]
    client.expect_printed("up\n")
    while len(processes.children(pid)) < 1:
        time.sleep(0.002)
    client.say(
        "diagnose", token=client.token(1), timeout_s=5.0
    )  # the stopped parent is asked first, for 0.5 s
    go.touch()
    child = client.expect("diagnosis")["ranks"]["0"]["processes"][1]
    assert child["state"][0] in "RS"
