"""Output that stays with its worker: nothing of it travels but an excerpt, where an attempt has not completed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from agent_fixtures import LivingWorker, MakeWorker
from agents import AgentClient, Gate, script

LINES = 60_000
FAIL = f"""
for number in range({LINES}): print("all is well, says number", number)
print("RuntimeError: the first one")
for number in range({LINES}): print("all is well, says number", number)
raise KeyError("the last one")
"""


@pytest.fixture
def agent(make_worker: MakeWorker) -> LivingWorker:
    return make_worker(output="workers", signs=("says number 77\n",))


def excerpts(client: AgentClient) -> list[dict[str, Any]]:
    return [event for event in client.heard if event["ev"] == "excerpt"]


def chosen(excerpt: dict[str, Any]) -> str:
    """What was chosen, each line where the file has it."""
    lines = Path(excerpt["path"]).read_text().splitlines(keepends=True)
    for part in excerpt["parts"]:
        begin = "".join(lines)[part["offset"] :]
        assert begin.startswith(part["text"])
        assert lines[part["line"] - 1].endswith(begin[: begin.index("\n") + 1])
    assert (excerpt["bytes"], excerpt["lines"]) == (len("".join(lines)), len(lines))
    return "".join(part["text"] for part in excerpt["parts"])


def test_an_attempt_that_fails_gives_an_excerpt_and_keeps_the_rest(client: AgentClient) -> None:
    started = client.start(script(FAIL))
    client.expect("exited", code=1)
    stopped = client.stop()
    (excerpt,) = excerpts(client)
    assert client.heard[-1] == stopped
    assert client.printed() == b""
    assert started["stays"] == {"0": excerpt["path"]}
    text = chosen(excerpt)
    assert len(text) < 256 << 10
    assert text.count("RuntimeError: the first one") == text.count("KeyError: 'the last one'") == 1
    assert text.count("says number 77\n") == 2


def test_an_attempt_that_completes_gives_none(client: AgentClient) -> None:
    client.start(script("print('error')"))
    client.expect("exited", code=0)
    client.stop(complete=True)
    assert excerpts(client) == []


def test_ranks_that_are_ended_give_theirs_too(client: AgentClient, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    code = f"print('rank', os.environ['RANK'], 'is lost')\nopen({str(gate.path)!r}, 'w').write('x')\n"
    client.start(script("import os, signal\n" + code + "signal.pause()"), ranks=2)
    heard = gate.wait()
    while len(heard) < 2:
        heard += gate.wait()
    client.stop()
    assert sorted(map(chosen, excerpts(client))) == ["rank 0 is lost\n", "rank 1 is lost\n"]


def test_who_comes_back_gets_it_when_the_attempt_is_ended(client: AgentClient, agent: LivingWorker) -> None:
    client.start(script("raise KeyError('a')"))
    client.expect("exited")
    client.stop()
    client.close()
    second = agent.attached(epoch=2)
    assert excerpts(second) == []
    second.say("stop", token=[2, 0, 1], grace_s=0, complete=False)
    second.expect("stopped")
    assert "KeyError: 'a'" in chosen(excerpts(second)[0])


def test_the_output_of_this_attempt_and_of_the_one_before_is_there(
    client: AgentClient, agent: LivingWorker
) -> None:
    for attempt in (1, 2, 3):
        client.start(script("raise SystemExit(3)"), attempt)
        client.expect("exited")
        client.stop(attempt)
    assert sorted(path.name for path in (agent.home / "io").iterdir()) == ["2-0.log", "3-0.log"]


def test_a_rank_that_never_stops_printing_holds_up_no_order(client: AgentClient) -> None:
    client.start(script("import os\nwhile True: os.write(1, b'x' * 65535 + b'\\n')"))
    client.stop()
    assert len(excerpts(client)) == 1


def test_its_file_is_bounded_and_what_was_in_it_is_in_the_excerpt(make_worker: MakeWorker) -> None:
    agent = make_worker(output="workers", spool_bytes=1 << 20)
    client = agent.attached()
    client.start(script(FAIL))
    client.expect("exited")
    client.stop()
    (excerpt,) = excerpts(client)
    assert os.stat(excerpt["path"]).st_blocks * 512 <= 1 << 20
    assert "the first one" in "".join(part["text"] for part in excerpt["parts"])
    assert (
        next(part["line"] for part in excerpt["parts"] if "the last one" in part["text"])
        > excerpt["lines"] - 5000
    )


def test_what_nobody_fetched_in_time_leaves_an_excerpt(make_worker: MakeWorker, tmp_path: Path) -> None:
    """Where output is handed on, and the oldest had to go before it was."""
    gate = Gate(tmp_path / "gate")
    agent = make_worker(spool_bytes=1 << 20, sample_period_s=0.01)
    first = agent.attached()
    first.start(script(f"open({str(gate.path)!r}).read()\n" + FAIL))
    first.close()
    gate.open()
    path = agent.home / "io" / "1-0.log"
    while b"the last one" not in path.read_bytes()[-1000:] or path.stat().st_blocks * 512 > 1 << 20:
        time.sleep(0.002)
    second = agent.attached(epoch=2)
    second.say("stop", token=[2, 0, 1], grace_s=0, complete=False)
    second.expect("stopped")
    (dropped,) = (event for event in second.heard if event["ev"] == "dropped")
    (excerpt,) = excerpts(second)
    assert dropped["bytes"] == excerpt["bytes"]
    assert "the first one" in "".join(part["text"] for part in excerpt["parts"])
    assert second.printed(first=excerpt["bytes"]).endswith(b"KeyError: 'the last one'\n")


@pytest.mark.parametrize("output", ["forward", "workers"])
def test_an_agent_that_leaves_by_itself_leaves_an_excerpt_of_all(
    make_worker: MakeWorker, output: str
) -> None:
    agent = make_worker(output=output, orphan_timeout_s=0.1)
    client = agent.attached()
    client.start(script(FAIL))
    client.close()
    while (agent.home / "agent.sock").exists():
        time.sleep(0.002)
    left = json.loads((agent.home / "left.json").read_text())
    text = chosen(left["excerpts"]["0"])
    assert text.count("RuntimeError: the first one") == text.count("KeyError: 'the last one'") == 1


def test_that_of_a_rank_that_fails_comes_before_its_end(client: AgentClient) -> None:
    client.start(script(FAIL))
    client.expect("exited", code=1)
    (excerpt,) = excerpts(client)
    assert "KeyError: 'the last one'" in chosen(excerpt)
    client.stop()
    assert excerpts(client) == [excerpt]
    client.start(script(FAIL), 2)  # another attempt, with as much output
    client.expect("exited", code=1)
    assert [one["bytes"] for one in excerpts(client)] == 2 * [excerpt["bytes"]]
    client.stop()
