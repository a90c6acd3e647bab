"""What only the process backend has to do: find and end what nobody holds, and nothing else."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agent_fixtures import LivingWorker, MakeWorker
from agents import AgentClient, Gate, script, settings, wait_until_ended

from prefect_ft.backends.base import Worker
from prefect_ft.backends.host import visible_accelerators
from prefect_ft.backends.process import backend as module
from prefect_ft.backends.process.backend import ProcessBackend
from prefect_ft.errors import BackendError
from prefect_ft.worker.processes import descendants

WAIT = "import signal; print('up', flush=True); signal.pause()"
WORKERS = [Worker(number=number, system="s0", epoch=1, decision=0) for number in (0, 1)]

OUTLIVING = {
    "a-rank": "echo up > up; exec sleep 1000",
    "own-session": "setsid --fork sleep 1000; echo up > up; sleep 1000",
    "no-environment": "exec env -i sh -c 'echo up > up; exec sleep 1000'",
    "no-output-of-its-own": "exec >/dev/null 2>&1; echo up > up; exec sleep 1000",
    "a-child-with-nothing": "env -i sh -c 'echo up > up; exec sleep 1000' >/dev/null 2>&1 & wait",
    "stopped": "echo up > up; kill -STOP $$",
}


@pytest.mark.parametrize("how", OUTLIVING.values(), ids=OUTLIVING)
def test_what_outlives_a_killed_agent_is_found_and_ended(
    agent: LivingWorker, client: AgentClient, tmp_path: Path, how: str
) -> None:
    gate = Gate(tmp_path / "up")
    client.start(["sh", "-c", how], cwd=str(tmp_path))
    gate.wait()
    pid = client.expect_attached()["pid"]
    outliving = descendants(pid)
    os.kill(pid, signal.SIGKILL)
    wait_until_ended(pid)
    assert all(Path(f"/proc/{pid}").exists() for pid in outliving)
    agent.backend.destroy([agent.worker])
    for pid in outliving:
        wait_until_ended(pid)
    assert not agent.home.exists()


def test_who_only_looks_at_a_workers_files_is_spared(agent: LivingWorker, client: AgentClient) -> None:
    client.start(script(WAIT))
    client.expect_printed("up")
    reader = subprocess.Popen(
        ["tail", "-f", str(agent.home / "io" / "1-0.log")],
        stdout=subprocess.PIPE,
        cwd=agent.home / "io",
        env={"PWD": str(agent.home / "io"), "PATH": os.environ["PATH"]},
    )
    try:
        assert reader.stdout.readline() == b"up\n"
        os.kill(client.expect_attached()["pid"], signal.SIGKILL)
        client.hear_to_the_end()
        agent.backend.destroy([agent.worker])
        assert reader.poll() is None
    finally:
        reader.kill()
        reader.communicate()


def test_an_agent_that_somebody_stopped_leaves_all_the_same(
    agent: LivingWorker, client: AgentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "end_strays", None)
    client.start(script(WAIT))
    client.expect_printed("up")
    os.kill(client.expect_attached()["pid"], signal.SIGSTOP)
    agent.backend.destroy([agent.worker])
    client.hear_to_the_end()


def test_an_agent_that_does_not_leave_is_killed(
    agent: LivingWorker, runtime_dir: Path, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAVE_TIMEOUT_S", 0.1)
    (payload,) = runtime_dir.glob("payload-*")
    with (payload / "prefect_ft" / "worker" / "agent.py").open("a") as source:
        source.write("\nAgent.leave = lambda self: None\n")
    deaf = make_worker()
    client = deaf.attached()
    rank = client.start(script(WAIT))["pids"]["0"]
    client.expect_printed("up")
    deaf.backend.destroy([deaf.worker])
    client.hear_to_the_end()
    wait_until_ended(rank)


def test_an_agent_that_dies_of_an_error_takes_its_ranks_along_and_says_why(
    agent: LivingWorker, runtime_dir: Path, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    (payload,) = runtime_dir.glob("payload-*")
    with (payload / "prefect_ft" / "worker" / "agent.py").open("a") as source:
        source.write("\ndef _bug(self, message):\n    raise KeyError('bug')\nAgent._choose = _bug\n")
    faulty = make_worker()
    client = faulty.attached()
    rank = client.start(script(WAIT))["pids"]["0"]
    client.expect_printed("up")
    client.say("choose", token=[1, 0, 1], limit=None, avoid=[], deaths=[])
    client.hear_to_the_end()
    wait_until_ended(rank)
    with caplog.at_level(logging.WARNING):
        faulty.backend.destroy([faulty.worker])
    assert "the agent of worker 0 on s0 said: " in caplog.text
    assert "KeyError: 'bug'" in caplog.text


def test_an_agent_that_left_by_itself_costs_no_look_at_other_processes(
    agent: LivingWorker, client: AgentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "end_strays", None)
    client.start(script(WAIT))
    client.expect_printed("up")
    agent.backend.destroy([agent.worker])


def test_of_workers_that_cannot_all_be_created_none_stays(runtime_dir: Path) -> None:
    directory = runtime_dir / ("x" * (104 - len(str(runtime_dir)) - len("/0-0-1-0/agent.sock")))
    directory.mkdir()
    backend = ProcessBackend(settings(), directory, {})
    assert (
        len(str(directory / "0-0-1-0" / "agent.sock"))
        <= 107
        < len(str(directory / "0-0-1-10000" / "agent.sock"))
    )
    long = Worker(number=1, system="s0", epoch=1, decision=10_000)
    with pytest.raises(BackendError, match="a worker cannot be started: AF_UNIX path too long"):
        backend.create([WORKERS[0], long])
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("value", ["\0", "x" * 3_000_000], ids=["a-nul", "too-long"])
def test_an_environment_that_cannot_be_given_is_a_backend_error(runtime_dir: Path, value: str) -> None:
    backend = ProcessBackend(settings(), runtime_dir, {"s0": {"BAD": value}})
    with pytest.raises(BackendError, match="a worker cannot be started") as caught:
        backend.create(WORKERS[:1])
    assert (caught.value.on_any_system, caught.value.system) == (True, None)
    assert not (runtime_dir / "0-0-1-0").exists()


def test_what_an_earlier_life_left_under_a_workers_name_is_cleared_away(runtime_dir: Path) -> None:
    home = runtime_dir / "0-0-1-0"
    (home / "tmp" / "old").mkdir(parents=True)
    stray = subprocess.Popen(["sleep", "1000"], env={"TMPDIR": str(home / "tmp")}, start_new_session=True)
    backend = ProcessBackend(settings(), runtime_dir, {})
    try:
        (address,) = backend.create(WORKERS[:1])
        assert stray.wait(timeout=30) == -signal.SIGKILL
        client = AgentClient(address)
        assert client.attach()["ev"] == "attached"
        client.close()
        assert list((home / "tmp").iterdir()) == []
    finally:
        stray.kill()
        stray.wait()
        backend.destroy(WORKERS[:1])


def test_ranks_do_not_inherit_what_is_the_flows_own(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "123")
    monkeypatch.setenv("MINE", "kept")
    agent = make_worker()
    client = agent.attached()
    client.start(
        script("import os; print([os.environ.get(n) for n in ('TMPDIR', 'PREFECT__FLOW_RUN_ID', 'MINE')])")
    )
    client.expect("exited", code=0)
    client.stop()
    assert client.printed().decode() == f"{[str(agent.home / 'tmp'), None, 'kept']}\n"


def test_a_relative_directory_is_as_good(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runtime_dir)
    Path("run").mkdir()
    backend = ProcessBackend(settings(), Path("run"), {})
    (address,) = backend.create(WORKERS[:1])
    client = AgentClient(address)
    assert client.attach()["ev"] == "attached"
    client.close()
    backend.destroy(WORKERS[:1])


def test_workers_cost_no_descriptors(runtime_dir: Path) -> None:
    backend = ProcessBackend(settings(), runtime_dir, {})
    before = len(os.listdir("/proc/self/fd"))
    backend.create(WORKERS)
    assert len(os.listdir("/proc/self/fd")) == before
    backend.destroy(WORKERS)
    assert len(os.listdir("/proc/self/fd")) == before


def test_only_this_user_can_read_a_workers_key(agent: LivingWorker) -> None:
    assert [path.stat().st_mode & 0o077 for path in (agent.home / "agent.json", agent.home / "tmp")] == [0, 0]


def test_cleaners_of_temporary_files_pass_a_living_worker_over(
    agent: LivingWorker, client: AgentClient, runtime_dir: Path
) -> None:
    """systemd-tmpfiles leaves directories alone on which somebody holds a lock."""
    import fcntl

    for directory in (agent.home, *runtime_dir.glob("payload-*")):
        fd = os.open(directory, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937, GPU-3a23"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"HIP_VISIBLE_DEVICES": "3"}, 1),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3"}, 4),
    ],
)
def test_accelerators_are_those_that_the_environment_shows(env: dict[str, str], count: int) -> None:
    assert visible_accelerators(env) == count


def test_without_such_variables_device_files_count() -> None:
    names = os.listdir("/dev")
    nvidia = sum(1 for name in names if name[:6] == "nvidia" and name[6:].isdigit())
    davinci = sum(1 for name in names if name[:7] == "davinci" and name[7:].isdigit())
    assert visible_accelerators({}) == max(nvidia, davinci)


def test_the_agents_interpreter_is_the_flows_own(client: AgentClient) -> None:
    path = Path(f"/proc/{client.expect_attached()['pid']}/cmdline")
    assert path.read_bytes().split(b"\0")[0].decode() == sys.executable
