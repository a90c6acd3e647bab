"""Output arrives byte for byte, in order and once, however much there is and however slowly it is read."""

from __future__ import annotations

import os
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from agent_fixtures import LivingWorker, MakeWorker
from agents import AgentClient, Gate, script

MIB = 1 << 20


def run(client: AgentClient, code: str) -> bytes:
    """What a rank prints that runs to its end."""
    client.start(script(code))
    client.expect("exited", code=0)
    client.stop(complete=True)
    return client.printed()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param("import os; os.write(1, b'\\0\\0a\\0\\n')", b"\0\0a\0\n", id="nul-bytes"),
        pytest.param("import os; os.write(1, bytes(range(256)))", bytes(range(256)), id="no-utf-8"),
        pytest.param("import os; os.write(1, b'torn')", b"torn", id="a-last-line-without-end"),
        pytest.param("import os; os.write(2, b'err\\n')", b"err\n", id="standard-error"),
        pytest.param("import os; os.write(1, b'x' * (10 << 20))", b"x" * 10 * MIB, id="a-line-of-10-mb"),
        pytest.param(
            "import os; os.write(1, b'\\xe2\\x96\\x88' * 200_000)",
            "█".encode() * 200_000,
            id="cut-characters",
        ),
        pytest.param(
            "print(*range(100_000), sep='\\n')",
            b"".join(b"%d\n" % n for n in range(100_000)),
            id="100k-lines",
        ),
        pytest.param("import os; os.close(1); os.close(2)", b"", id="closed-output"),
        pytest.param(
            "import os, subprocess; print('one'); subprocess.run('echo two; (sleep 0.05; echo three)', shell=True)",
            b"one\ntwo\nthree\n",
            id="children-print-as-well",
        ),
    ],
)
def test_every_byte_arrives(client: AgentClient, code: str, expected: bytes) -> None:
    assert run(client, code) == expected


def test_output_comes_while_the_rank_runs(client: AgentClient, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    client.start(script(f"print('one')\nopen({str(gate.path)!r}).read()\nprint('two')"))
    client.expect_printed("one\n")
    gate.open()
    client.expect_printed("two\n")
    client.stop()


def test_a_script_that_empties_its_output_loses_only_that(client: AgentClient, tmp_path: Path) -> None:
    """The shell opens /dev/stderr anew, and empties the file; nobody told it that it is one."""
    gate = Gate(tmp_path / "gate")
    client.start(["sh", "-c", f"echo one; cat {gate.path}; echo two > /dev/stderr; echo three"])
    client.expect_printed("one\n")
    gate.open("")
    client.expect("exited", code=0)
    client.stop()
    assert client.printed() == b"one\ntwo\nthree\n"


LINES = 12 * MIB // 8
PRINT_MUCH = f"""
import os, sys
for first in range(0, {LINES}, 4096):
    os.write(1, b"".join(b"%07d\\n" % number for number in range(first, first + 4096)))
"""
MUCH = b"".join(b"%07d\n" % number for number in range(LINES))


def memory_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024


def test_a_reader_that_sleeps_loses_nothing_and_costs_no_memory(client: AgentClient, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "done")
    pid = client.expect_attached()["pid"]
    before = memory_mib(pid)
    client.start(script(PRINT_MUCH + f"open({str(gate.path)!r}, 'w').write('done')"))
    gate.wait()  # and nothing has been read in all the time
    assert client.stop()["ev"] == "stopped"
    assert client.printed() == MUCH
    assert memory_mib(pid) - before < 20


def test_all_output_comes_before_stopped(client: AgentClient, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "done")
    client.start(
        script(PRINT_MUCH + f"open({str(gate.path)!r}, 'w').write('done')\nimport signal; signal.pause()")
    )
    gate.wait()
    stopped = client.stop()
    assert client.heard[-1] == stopped
    assert client.printed() == MUCH


def test_ranks_that_print_a_lot_take_turns(client: AgentClient, tmp_path: Path) -> None:
    gates = [Gate(tmp_path / f"done{rank}") for rank in (0, 1)]
    client.start(
        script(PRINT_MUCH + "open('done' + os.environ['RANK'], 'w').write('x')"), cwd=str(tmp_path), ranks=2
    )
    for gate in gates:
        gate.wait()
    client.stop()
    turns = [event["rank"] for event in client.heard if event["ev"] == "output"]
    longest = max(len(list(same)) for _, same in groupby(turns[len(turns) // 4 : -len(turns) // 4]))
    assert (client.printed(0), client.printed(1)) == (MUCH, MUCH)
    assert longest <= 2


def test_who_goes_on_printing_is_not_preferred_to_who_waits_to_be_read(
    client: AgentClient, tmp_path: Path
) -> None:
    gates = [Gate(tmp_path / f"done{rank}") for rank in (0, 1)]
    code = (
        PRINT_MUCH + "open('done' + os.environ['RANK'], 'w').write('x')\n"
        "import time\n"
        "while os.environ['RANK'] == '1': os.write(1, b'more\\n'); time.sleep(0.001)"
    )
    client.start(script(code), cwd=str(tmp_path), ranks=2)
    for gate in gates:
        gate.wait()

    def outputs() -> list[dict[str, Any]]:
        return [event for event in client.heard if event["ev"] == "output"]

    while not any(event["rank"] == 0 and event["text"].endswith(MUCH[-8:].decode()) for event in outputs()):
        client.hear()
        time.sleep(0.005)  # a reader that is slower than the ranks
    client.stop()
    turns = [event["rank"] for event in outputs()]
    until = max(number for number, rank in enumerate(turns) if rank == 0)
    longest = max(len(list(same)) for _, same in groupby(turns[until // 4 : until]))
    assert longest <= 2


def test_a_rank_that_never_stops_printing_holds_up_no_order(client: AgentClient) -> None:
    client.start(script("import os\nwhile True: os.write(1, b'x' * 65535 + b'\\n')"))
    client.expect("output")
    client.stop()


def test_what_nobody_fetches_in_time_is_dropped_and_counted(make_worker: MakeWorker, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "done")
    agent = make_worker(spool_bytes=MIB)
    client = agent.attached()
    client.start(script("pass"))
    client.close()
    client = agent.attached(epoch=2)
    client.stop()
    client.start(script(PRINT_MUCH + f"open({str(gate.path)!r}, 'w').write('done')"), attempt=2)
    gate.wait()
    client.expect("exited", code=0)
    client.stop(2)
    dropped = sum(event["bytes"] for event in client.heard if event["ev"] == "dropped")
    pieces = [event for event in client.heard if event["ev"] == "output"]
    text = "".join(event["text"] for event in pieces).encode()
    assert dropped > 0
    assert dropped + len(text) == len(MUCH)
    assert (agent.home / "io" / "2-0.log").stat().st_blocks * 512 <= MIB
    assert MUCH.endswith(text[-1000:])
    assert all(MUCH[event["offset"] :].startswith(event["text"].encode()) for event in pieces)


def test_who_comes_back_gets_what_it_missed(agent: LivingWorker, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    first = agent.attached()
    first.start(script(f"print('one')\nopen({str(gate.path)!r}).read()\nprint('two'); raise SystemExit(3)"))
    first.expect_printed("one\n")
    first.close()
    gate.open()
    second = agent.attached(have={"0": 4})
    assert second.expect_attached()["running"] in ([0], [])
    second.expect_printed("two\n", first=4)
    second.expect("exited", code=3) if second.expect_attached()["running"] else None
    second.stop()
    assert second.printed(first=4) == b"two\n"


def test_who_comes_late_is_told_how_it_ended(agent: LivingWorker, tmp_path: Path) -> None:
    first = agent.attached()
    pid = first.start(script("print('all of it'); print('torn', end=''); raise SystemExit(3)"))["pids"]["0"]
    first.expect("exited")
    first.close()
    second = agent.attached(epoch=2)
    attached = second.expect_attached()
    exited = attached["exits"]["0"]
    assert (attached["running"], attached["over"], attached["token"]) == ([], False, [1, 0, 1])
    assert (exited["code"], exited["signal"]) == (3, None)
    assert not os.path.exists(f"/proc/{pid}")
    second.stop()
    assert second.printed() == b"all of it\ntorn"


def test_after_the_end_a_newcomer_still_gets_all_of_it(agent: LivingWorker) -> None:
    first = agent.attached()
    first.start(script("print('all of it'); print('torn', end='')"))
    first.expect("exited")
    first.stop()
    first.close()
    second = agent.attached(have={"0": 4})
    second.stop()
    assert (second.expect_attached()["over"], second.printed(first=4)) == (True, b"of it\ntorn")


def test_the_files_of_an_attempt_go_when_the_next_one_starts(
    client: AgentClient, agent: LivingWorker
) -> None:
    for attempt in (1, 2):
        client.start(script("from prefect_ft.heartbeat import beat; beat(step=1)"), attempt)
        client.expect("exited")
        client.stop(attempt)
    assert sorted(path.name for path in (agent.home / "io").iterdir()) == [
        "2-0.beat",
        "2-0.beat.stacks",
        "2-0.log",
    ]


def test_an_attempt_of_the_same_number_has_no_output_of_the_one_before(agent: LivingWorker) -> None:
    """An orchestrator that comes back numbers as its journal does, which the one before may not have come to write."""
    for epoch, text in ((1, "before"), (2, "after")):
        client = agent.attached(epoch=epoch)
        client.start(script(f"print({text!r})"))
        client.expect("exited")
        client.stop()
        told = [
            event for event in client.heard if event["ev"] == "output" and event["token"] == client.token(1)
        ]
        assert "".join(event["text"] for event in told) == f"{text}\n"


def test_the_files_of_an_attempt_go_when_the_next_one_cannot_start(
    client: AgentClient, agent: LivingWorker
) -> None:
    client.start(script("print('up')"))
    client.expect("exited")
    client.stop()
    assert client.start(["/nowhere"], 2)["ev"] == "start_failed"
    client.start(["/nowhere"], 3)  # what is told comes before what is deleted
    assert list((agent.home / "io").iterdir()) == []


def test_when_the_first_line_came_is_told_once_in_an_attempt(client: AgentClient) -> None:
    for attempt in (1, 2):
        before_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        client.start(script("print('up'); print('more')"), attempt)
        told = client.expect("came_up")
        assert (told["what"], told["token"]) == ("first-line", client.token(attempt))
        assert before_ns < told["t_ns"] < time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        client.expect("exited")
        client.stop(attempt)
    assert len([event for event in client.heard if event["ev"] == "came_up"]) == 2


def test_what_a_rank_that_fails_printed_comes_before_its_end(client: AgentClient) -> None:
    code = "import os, signal, sys\nif os.environ['RANK'] == '1': signal.pause()\n"
    client.start(
        script(code + "for number in range(20_000): print(number)\nprint('x', end='')\nsys.exit(3)"), ranks=2
    )
    client.expect("exited", code=3)
    assert client.printed().endswith(b"\n19999\nx")
    client.stop()
