"""An agent ends an attempt by itself where that can only be ordered: all ranks have ended, and one has failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_fixtures import LivingWorker, MakeWorker
from agents import AgentClient, Gate, checkpoints, script, wait_until_ended

LEAVES_ONE = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    signal.pause()
if os.environ["RANK"] == "1":
    open(sys.argv[1]).read()
    print("last words", end="", flush=True)
    {end}
"""


@pytest.mark.parametrize("end", ["sys.exit(3)", "os.kill(os.getpid(), 9)"])
def test_what_an_attempt_left_is_ended_and_all_is_told_without_an_order(
    make_worker: MakeWorker, tmp_path: Path, end: str
) -> None:
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "step-1.npz").write_text("cut off")
    client = make_worker(checkpoints=checkpoints(tmp_path / "ck")).attached()
    gate = Gate(tmp_path / "gate")
    started = client.start([*script(LEAVES_ONE.format(end=end)), str(gate.path)], ranks=2, WORLD_SIZE="2")
    assert not client.expect("exited", rank=0)["ends"]
    gate.open()
    stopped = client.expect("stopped")
    assert client.expect("exited", rank=1)["ends"]
    assert (stopped["token"], stopped["stuck"], len(stopped["deaths"])) == ([1, 0, 1], [], 1)
    assert list(stopped["passed_over"]) == ["step-1.npz"]
    assert client.printed(1) == b"last words"
    assert client.heard[-1] == stopped
    for pid in started["pids"].values():
        wait_until_ended(pid)  # and who looks for what is left finds nobody when the test ends


def test_an_order_to_stop_is_answered_all_the_same(client: AgentClient) -> None:
    client.start(script("raise SystemExit(1)"), WORLD_SIZE="1")
    first = client.expect("stopped")
    assert client.stop()["deaths"] == first["deaths"]
    client.start(script("raise SystemExit(1)"), 2, WORLD_SIZE="1")
    assert client.expect("stopped")["token"] == [1, 0, 2]


@pytest.mark.parametrize(
    ("code", "ranks", "world"),
    [
        pytest.param("", 1, "1", id="good end"),
        pytest.param("raise SystemExit(1)", 1, "2", id="others elsewhere"),
        pytest.param(
            "import os, signal; os.environ['RANK'] == '0' or signal.pause(); raise SystemExit(1)",
            2,
            "2",
            id="a rank left",
        ),
    ],
)
def test_it_waits_for_the_order_where_that_may_not_come(
    client: AgentClient, code: str, ranks: int, world: str
) -> None:
    client.start(script(code), ranks=ranks, WORLD_SIZE=world)
    assert not client.expect("exited")["ends"]
    assert client.stop()["stuck"] == []
    assert client.stop(attempt=2)["token"] == [1, 0, 1]
    assert sum(event["ev"] == "stopped" for event in client.heard) == 2


def test_who_has_heard_of_a_failure_has_the_say(client: AgentClient, tmp_path: Path) -> None:
    """What was decided then is under way, whichever rank ends last."""
    gate = Gate(tmp_path / "gate")
    client.start(
        script(f"import os; os.environ['RANK'] == '0' or open({str(gate.path)!r}).read(); os._exit(3)"),
        ranks=2,
        WORLD_SIZE="2",
    )
    client.expect("exited", rank=0)
    gate.open()
    assert not client.expect("exited", rank=1)["ends"]
    assert client.stop()["stuck"] == []


def test_ends_are_told_before_the_end_of_all_of_them(client: AgentClient) -> None:
    client.start(script("import signal; print('up', flush=True); signal.pause()"), ranks=2, WORLD_SIZE="2")
    for rank in range(2):
        client.expect_printed("up", rank)
    client.stop()
    assert [event["ev"] for event in client.heard if event["ev"] in ("exited", "stopped")] == [
        "exited",
        "exited",
        "stopped",
    ]


def test_ranks_that_end_of_an_order_end_by_that(client: AgentClient) -> None:
    client.start(script("import signal; print('up', flush=True); signal.pause()"), WORLD_SIZE="1")
    client.expect_printed("up")
    stopped = client.stop(grace_s=1000)
    assert not client.expect("exited")["ends"]
    assert [event for event in client.heard if event["ev"] == "stopped"] == [stopped]


def test_while_nobody_is_attached_it_waits_for_who_comes(agent: LivingWorker, tmp_path: Path) -> None:
    gate, first = Gate(tmp_path / "gate"), agent.attached()
    started = first.start(script(f"open({str(gate.path)!r}).read(); raise SystemExit(1)"), WORLD_SIZE="1")
    first.close()
    gate.open()
    wait_until_ended(started["pids"]["0"])
    second = agent.attached(epoch=2)
    assert not second.expect_attached()["over"]
    assert second.stop()["token"] == [1, 0, 1]
