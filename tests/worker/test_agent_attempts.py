"""One worker's attempts: started whole or not at all, reported as they are, ended with all that hangs on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent_fixtures import LivingWorker, MakeWorker
from agents import AgentClient, Gate, processes_of, script, wait_until_ended

WAIT = "import signal; print('up', flush=True); signal.pause()"


def ranks_of(agent: LivingWorker) -> dict[int, list[str]]:
    """Who carries the worker's directory, but for the agent."""
    return {pid: words for pid, words in processes_of(agent.home).items() if "agent.json" not in str(words)}


def test_an_attempt_is_reported_from_its_start_to_its_end(client: AgentClient) -> None:
    started = client.start(script("import os; print('rank', os.environ['RANK'])"), ranks=2)
    for rank in (0, 1):
        client.expect("exited", rank=rank, code=0, signal=None)
    stopped = client.stop(complete=True)
    assert sorted(started["pids"]) == ["0", "1"]
    assert (client.printed(0), client.printed(1)) == (b"rank 0\n", b"rank 1\n")
    assert (stopped["stuck"], stopped["deaths"], stopped["token"]) == ([], [], [1, 0, 1])
    assert client.heard[-1] == stopped


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param("raise SystemExit(0)", (0, None), id="done"),
        pytest.param("raise SystemExit(3)", (3, None), id="exit-code"),
        pytest.param("import os; os.kill(os.getpid(), 11)", (None, signal.SIGSEGV), id="crash"),
        pytest.param("import os; os.kill(os.getpid(), 9)", (None, signal.SIGKILL), id="killed"),
    ],
)
def test_how_a_rank_ended(client: AgentClient, code: str, expected: tuple) -> None:
    client.start(script(code))
    exited = client.expect("exited")
    assert (exited["code"], exited["signal"]) == expected
    assert len(client.stop()["deaths"]) == (0 if expected == (0, None) else 1)


def test_the_ranks_environment(client: AgentClient, agent: LivingWorker) -> None:
    names = ("RANK", "MINE", "TMPDIR", "PREFECT_FT_HEARTBEAT", "PYTHONUNBUFFERED")
    client.start(
        script(f"import os; [print(os.environ[name]) for name in {names!r}]; import prefect_ft.heartbeat"),
        MINE="yes",
    )
    client.expect("exited", code=0)
    client.stop()
    home = str(agent.home)
    assert client.printed().decode().split() == ["0", "yes", home + "/tmp", home + "/io/1-0.beat", "1"]


UNSET = ["RANK", "HOME", "GIVEN", "PREFECT_FT_HEARTBEAT", "TORCHELASTIC_ERROR_FILE", "PYTHONPATH"]
"""Variables of each source: the ranks' own, the worker's, the order's, the agent's."""


def test_variables_that_are_unset_are_nowhere(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/")
    client = make_worker().attached()
    client.start(script(f"import os; print([each in os.environ for each in {UNSET}])"), GIVEN="1")
    client.expect_printed(f"{[True] * 6}\n")
    client.stop()
    client.heard.clear()
    client.start(
        script(f"import os; print([each for each in {UNSET} if each in os.environ])"), 2, unset=UNSET
    )
    client.expect_printed("[]\n")


def test_an_agent_serves_no_store_for_ranks_that_are_not_to_know_of_one(make_worker: MakeWorker) -> None:
    client = make_worker(rendezvous={"by": "agent", "command": ["x"], "cwd": "/", "env": {}}).attached()
    port = client.expect_attached()["port"]
    bind = f"import socket\ns = socket.socket()\ns.bind(('127.0.0.1', {port}))\ns.listen()\nprint('listens')"
    told = {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    client.start(script(bind), unset=["TORCHELASTIC_USE_AGENT_STORE"], **told)
    client.expect_printed("listens\n")


def test_each_rank_has_an_error_file_that_goes_with_the_attempt(
    client: AgentClient, agent: LivingWorker
) -> None:
    write = "import os; open(os.environ['TORCHELASTIC_ERROR_FILE'], 'x').write('{}')"
    client.start(script(write), ranks=2)
    assert [client.expect("exited")["code"] for _ in range(2)] == [0, 0]
    assert len([*(agent.home / "io").glob("*.error.json")]) == 2
    client.stop()
    client.start(script(""), 2)
    assert [*(agent.home / "io").glob("1-*.error.json")] == []


def test_ranks_start_with_the_signals_and_descriptors_of_a_fresh_process(client: AgentClient) -> None:
    """As if this process had started them itself: what a shell had it ignore, they ignore too."""
    code = """
import os
ignored = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("SigIgn")), 16)
print([n for n in range(1, 32) if ignored >> n - 1 & 1], sorted(map(int, os.listdir("/proc/self/fd")))[:3])
print(os.getsid(0) == os.getpid(), len(os.listdir("/proc/self/fd")))
"""
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    client.start(script(code))
    client.expect("exited", code=0)
    client.stop()
    assert client.printed().decode().splitlines() == [plain.stdout.splitlines()[0], "True 4"]


def test_what_a_shell_has_its_background_ignore_ranks_ignore(make_worker: MakeWorker) -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT)}
    try:
        client = make_worker().attached()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    client.start(
        script(
            "import signal\nprint(*(int(signal.getsignal(each)) for each in (signal.SIGHUP, signal.SIGINT)))"
        )
    )
    client.expect("exited", code=0)
    client.stop()
    assert client.printed() == b"1 1\n"


NOT_EXECUTABLE = 0o644


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param(
            ["/no/such/command"], (2, "No such file or directory", "/no/such/command"), id="missing"
        ),
        pytest.param(
            ["no-such-command"], (2, "No such file or directory", "no-such-command"), id="not-on-path"
        ),
        pytest.param(["/etc/passwd"], (13, "Permission denied", "/etc/passwd"), id="not-executable"),
        pytest.param(["/etc"], (13, "Permission denied", "/etc"), id="a-directory"),
        pytest.param(["./garbage"], (8, "Exec format error", "./garbage"), id="no-program"),
        pytest.param(["true", "x" * 3_000_000], (7, "Argument list too long", "true"), id="too-long"),
        pytest.param(["tr\0ue"], (None, "embedded null byte", "tr\0ue"), id="a-nul-in-it"),
    ],
)
def test_a_command_that_cannot_be_started(
    client: AgentClient, tmp_path: Path, command: list[str], expected: tuple
) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x7fELF and nothing else")
    garbage.chmod(0o755)
    failed = client.start(command, cwd=str(tmp_path))
    assert (failed["ev"], failed["errno"], failed["error"], failed["what"]) == ("start_failed", *expected)
    assert client.stop()["stuck"] == []


def test_a_directory_that_is_missing(client: AgentClient) -> None:
    failed = client.start(["true"], cwd="/no/such/place")
    assert (failed["ev"], failed["errno"], failed["what"]) == ("start_failed", 2, "/no/such/place")


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({"LONG": "x" * 3_000_000}, id="too-long"),
        pytest.param({"A=B": "x"}, id="no-name"),
        pytest.param({"NUL": "\0"}, id="a-nul-in-it"),
    ],
)
def test_an_environment_that_cannot_be_given(client: AgentClient, env: dict[str, str]) -> None:
    assert client.start(["true"], **env)["ev"] == "start_failed"


def test_of_an_attempt_that_starts_in_part_nothing_stays(client: AgentClient, agent: LivingWorker) -> None:
    ranks = {"0": {"RANK": "0"}, "1": {"RANK": "1"}, "2": {"RANK": "2", "NUL": "\0"}}
    client.say("start", token=[1, 0, 1], command=["sleep", "1000"], cwd="/", env={}, ranks=ranks, note={})
    assert client.expect("start_failed")["error"] == "embedded null byte"
    assert (ranks_of(agent), list((agent.home / "io").iterdir())) == ({}, [])
    assert client.start(script("print('next')"), attempt=2)["ev"] == "started"
    client.expect("exited", code=0)
    assert client.stop(2)["ev"] == "stopped"


def test_failed_starts_cost_the_agent_no_descriptors(client: AgentClient) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    pid = client.expect_attached()["pid"]
    client.start(["/no/such/command"], attempt=1, ranks=4)
    client.stop(1)
    before = descriptors()
    for attempt in range(2, 6):
        client.start(["/no/such/command"], attempt, ranks=4)
        client.stop(attempt)
    for attempt in range(6, 9):
        client.start(["true"], attempt, ranks=4)
        client.stop(attempt)
    client.start(["/no/such/command"], attempt=9)
    client.stop(9)
    assert descriptors() == before


AWKWARD = {
    "sleeps": "exec sleep 1000",
    "ignores-sigterm": "trap '' TERM; while :; do sleep 1000; done",
    "stops-itself": "kill -STOP $$",
    "own-session": "setsid --fork sleep 1000; sleep 1000",
    "double-fork": "(sleep 1000 &) & sleep 1000",
    "a-daemon-outlives-it": "setsid --fork sleep 1000",
    "a-nameless-daemon-outlives-it": "env -i setsid --fork sleep 1000 </dev/null >/dev/null 2>&1",
    "closes-its-output": "exec 1>&- 2>&-; sleep 1000",
}


@pytest.mark.parametrize("grace_s", [0, 0.05], ids=["at-once", "with-grace"])
@pytest.mark.parametrize("how", AWKWARD.values(), ids=AWKWARD)
def test_a_stop_ends_whatever_ranks_started(
    client: AgentClient, agent: LivingWorker, tmp_path: Path, how: str, grace_s: float
) -> None:
    gate = Gate(tmp_path / "up")
    client.start(["sh", "-c", f"echo up > up; {how}"], cwd=str(tmp_path))
    gate.wait()
    assert client.stop(grace_s=grace_s)["stuck"] == []
    assert ranks_of(agent) == {}
    assert children_of(client.expect_attached()["pid"]) == []


def children_of(pid: int) -> list[int]:
    from prefect_ft.worker.processes import descendants

    return descendants(pid)


def test_a_grace_lets_a_rank_end_by_itself(client: AgentClient) -> None:
    code = "import signal, sys\nsignal.signal(15, lambda *_: (print('saved'), sys.exit(0)))\n" + WAIT
    client.start(script(code))
    client.expect_printed("up")
    stopped = client.stop(grace_s=1000)
    assert client.printed() == b"up\nsaved\n"
    assert (client.expect("exited")["code"], stopped["deaths"]) == (0, [])


def test_a_stopped_rank_hears_the_grace_as_well(client: AgentClient) -> None:
    client.start(script(f"import os, signal\nprint('up')\nos.kill(os.getpid(), signal.SIGSTOP)\n{WAIT}"))
    client.expect_printed("up")
    client.stop(grace_s=1000)
    assert client.expect("exited")["signal"] == signal.SIGTERM


def test_a_stop_without_grace_overtakes_one_with(client: AgentClient) -> None:
    client.start(["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1000; done"])
    client.expect_printed("up")
    client.say("stop", token=[1, 0, 1], grace_s=1000, complete=False)
    assert client.stop()["stuck"] == []
    assert client.expect("exited")["signal"] == signal.SIGKILL


def test_a_stop_of_nothing_is_answered(client: AgentClient) -> None:
    assert [client.stop()["ev"], client.stop()["ev"]] == ["stopped", "stopped"]


def test_the_port_is_kept_free_and_another_one_each_time(client: AgentClient) -> None:
    import socket

    bind = "import os, socket\ns = socket.socket()\ns.bind(('', int(os.environ['PORT'])))\nprint('bound')"
    port, seen = client.expect_attached()["port"], set()
    for attempt in (1, 2, 3):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", port))
        client.start(script(bind), attempt, PORT=str(port))
        client.expect("exited", code=0)
        seen.add(port)
        port = client.stop(attempt)["port"]
    assert len({*seen, port}) == 4


def test_the_heartbeat_is_reported(client: AgentClient, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    code = f"""
from prefect_ft.heartbeat import beat
beat(step=7, stage="train")
open({str(gate.path)!r}).read()
"""
    client.start(script(code))
    beat = client.expect("beat", rank=0)
    assert (beat["step"], beat["stage"], beat["stage_step"], beat["beats"]) == (7, "train", 7, 1)
    gate.open()
    client.expect("exited", code=0)
    client.stop()


@pytest.mark.parametrize("what", ["os.mkfifo(path)", "os.mkdir(path)", "open(path, 'w').write('x' * 64)"])
def test_a_script_may_put_anything_in_the_heartbeats_place(client: AgentClient, what: str) -> None:
    client.start(script(f"import os; path = os.environ['PREFECT_FT_HEARTBEAT']; {what}; print('done')"))
    client.expect_printed("done")
    client.expect("exited", code=0)
    assert client.stop()["ev"] == "stopped"


def test_an_agent_that_is_told_to_leave_ends_its_ranks(client: AgentClient, agent: LivingWorker) -> None:
    pids = client.start(script(WAIT), ranks=2)["pids"]
    client.say("leave", token=[1, 0, 1])
    client.hear_to_the_end()
    for pid in pids.values():
        wait_until_ended(pid)
    wait_until_ended(client.expect_attached()["pid"])
    assert not (agent.home / "agent.sock").exists()


def test_an_agent_that_is_told_to_leave_in_mid_start_leaves_nobody(make_worker: MakeWorker) -> None:
    agent = make_worker()
    client = agent.attached()
    ranks = {str(rank): {"RANK": str(rank)} for rank in range(40)}
    client.say("start", token=[1, 0, 1], command=["sleep", "1000"], cwd="/", env={}, ranks=ranks, note={})
    pid = client.expect_attached()["pid"]
    while not children_of(pid):
        time.sleep(0.002)
    os.kill(pid, signal.SIGTERM)
    client.hear_to_the_end()
    wait_until_ended(pid)
    assert processes_of(agent.home) == {}


def test_a_daemon_that_outlives_its_rank_is_collected_when_it_ends(make_worker: MakeWorker) -> None:
    """As PID 1 of a container would: nobody else collects orphans."""
    agent = make_worker(sample_period_s=0.05)
    client = agent.attached()
    client.start(["sh", "-c", "setsid --fork sh -c 'echo $$; exec sleep 0.1'; sleep 1000"])
    client.expect_printed("\n")
    daemon = int(client.printed())
    wait_until_ended(daemon)
    while Path(f"/proc/{daemon}").exists():
        client.expect_nothing()
    client.stop()


def test_nobody_to_report_to_for_too_long_and_the_agent_leaves(make_worker: MakeWorker) -> None:
    agent = make_worker(orphan_timeout_s=0.05)
    client = agent.attached()
    client.close()
    wait_until_ended(client.expect_attached()["pid"])
    assert agent.log == ""


def test_training_goes_on_with_nobody_to_report_to(make_worker: MakeWorker, tmp_path: Path) -> None:
    agent, gate, done = make_worker(orphan_timeout_s=0.05), Gate(tmp_path / "gate"), tmp_path / "done"
    client = agent.attached()
    code = f"open({str(gate.path)!r}).read(); print('more', flush=True); open({str(done)!r}, 'x')"
    client.start(script(code))
    client.close()
    pid = client.expect_attached()["pid"]
    assert not ended_within(pid, 0.2)
    gate.open()
    wait_until_ended(pid)
    assert done.exists()


def ended_within(pid: int, seconds: float) -> bool:
    import select

    handle = os.pidfd_open(pid)
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def test_an_idle_agent_sleeps(agent: LivingWorker, client: AgentClient) -> None:
    """One wake-up a sample period, and no other: here the period is an hour."""
    client.start(script(WAIT))
    client.expect_printed("up")
    client.stop()
    status = Path(f"/proc/{client.expect_attached()['pid']}/status")

    def wake_ups() -> int:
        return int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    for _ in range(20):  # on a busy machine it takes a while to go to sleep
        before = wake_ups()
        assert client.says_nothing(0.5)
        if wake_ups() == before:
            return
    pytest.fail("it never sleeps")


def test_a_tick_costs_next_to_nothing(make_worker: MakeWorker) -> None:
    """Under 0.1 % of a core with the default period of 10 s: under 10 ms a tick, ranks included."""
    agent = make_worker(sample_period_s=0.01)
    client = agent.attached()
    client.start(script(WAIT), ranks=4)
    for rank in range(4):
        client.expect_printed("up\n", rank)
    schedstat = Path(f"/proc/{client.expect_attached()['pid']}/schedstat")

    def cost() -> tuple[int, int]:
        run_ns, _, times = map(int, schedstat.read_text().split())
        return run_ns, times

    run_ns, times = cost()
    assert client.says_nothing(0.5)
    run_ns, times = cost()[0] - run_ns, cost()[1] - times
    client.stop()
    assert times > 5
    assert run_ns / times < 5e6
