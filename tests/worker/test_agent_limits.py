"""What an agent does where the machine gives it less than it wants: with less, the same."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import pythons
from agent_fixtures import MakeWorker, StartAgent
from agents import AgentClient, Gate, address_of, checkpoints, script, wait_until_ended, write_agent_config

from prefect_ft.backends.payload import payload_directory

NO_INOTIFY = """
def _none_left(self):
    raise OSError(24, "Too many open files", "inotify_init1")
Inotify.__init__ = _none_left
"""

NO_WATCHES = """
def _none_left(self, directory, mask):
    raise OSError(28, "No space left on device", directory)
Inotify.watch = _none_left
"""


@pytest.mark.parametrize("fault", [NO_INOTIFY, NO_WATCHES], ids=["no-instances", "no-watches"])
def test_without_inotify_output_comes_all_the_same(
    start_agent: StartAgent, tmp_path: Path, fault: str
) -> None:
    gate = Gate(tmp_path / "gate")
    agent = start_agent(faults={"inotify.py": fault}, checkpoints=checkpoints(tmp_path))
    client = agent.attached()
    client.start(script(f"print('one')\nopen({str(gate.path)!r}).read()\nprint('two', end='')"))
    client.expect_printed("one\n")
    gate.open()
    client.expect("exited", code=0)
    client.stop()
    assert client.printed() == b"one\ntwo"
    assert agent.log == ""


def test_without_descriptors_a_start_fails_and_the_agent_lives(start_agent: StartAgent) -> None:
    agent = start_agent(open_files=32)
    client = agent.attached()
    failed = client.start(["sleep", "1000"], attempt=1, ranks=20)
    assert (failed["ev"], failed["errno"]) == ("start_failed", errno.EMFILE)
    client.stop(1)
    assert client.start(script("print('fits')"), attempt=2)["ev"] == "started"
    client.expect("exited", code=0)
    client.stop(2)
    assert (client.printed(), agent.log) == (b"fits\n", "")


def test_without_descriptors_the_door_waits_and_opens_again(start_agent: StartAgent) -> None:
    agent = start_agent(open_files=20)
    client = agent.attached()
    strangers = [AgentClient(address_of(agent.home)) for _ in range(12)]
    while len(os.listdir(f"/proc/{agent.process.pid}/fd")) < 20:
        client.expect_nothing()
    assert client.stop()["ev"] == "stopped"
    for stranger in strangers:
        stranger.close()
    agent.attached(epoch=2).stop()
    assert agent.log == ""


def test_a_full_disk_is_the_ranks_trouble_and_not_the_agents(start_agent: StartAgent, tmp_path: Path) -> None:
    """A rank that cannot print gets the error that any redirected program gets."""
    agent = start_agent()
    disk = agent.home / "io"
    client = agent.attached()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "test", str(disk)], check=False)
    if mount.returncode != 0:
        pytest.skip("this test mounts a file system")
    try:
        client.start(script("import os\nwhile True: os.write(1, b'x' * 4095 + b'\\n')"), attempt=1)
        assert client.expect("exited")["code"] == 1
        client.stop(1)
        assert set(client.printed()) == set(b"x\n")
        assert client.start(script("pass"), attempt=2)["ev"] == "started"
        client.expect("exited", code=0)
        client.stop(2)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    assert agent.log == ""


def test_a_rank_that_a_tracer_holds_does_not_keep_the_agent_busy(
    start_agent: StartAgent, tmp_path: Path
) -> None:
    """The tracer gets the rank's end first; the agent's pidfd is readable all that time."""
    agent = start_agent(sample_period_s=0.05)
    client = agent.attached()
    rank = client.start(script("import signal; print('up'); signal.pause()"))["pids"]["0"]
    client.expect_printed("up")
    held, go = Gate(tmp_path / "held"), Gate(tmp_path / "go")
    tracer = subprocess.Popen([sys.executable, "-c", TRACER, str(rank), str(held.path), str(go.path)])
    try:
        if held.wait() != "held":
            pytest.skip("ptrace is not allowed here")
        os.kill(rank, signal.SIGKILL)
        run_ns = agent_run_ns(agent.process.pid)
        assert client.says_nothing(0.5)
        assert agent_run_ns(agent.process.pid) - run_ns < 0.25e9
        go.open()
        assert client.expect("exited")["signal"] == signal.SIGKILL
        client.stop()
    finally:
        tracer.kill()
        tracer.wait()


TRACER = """
import ctypes, sys
pid, held, go = int(sys.argv[1]), sys.argv[2], sys.argv[3]
PTRACE_SEIZE = 0x4206
ok = ctypes.CDLL(None, use_errno=True).ptrace(PTRACE_SEIZE, pid, 0, 0) == 0
open(held, "w").write("held" if ok else "no")
open(go).read()  # and only then does it end, which lets the rank go
"""


def agent_run_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


PYTHON39 = pythons.found("3.9")
NEED_A_FRAMEWORK = {
    "prefect_ft.callbacks.huggingface",
    "prefect_ft.callbacks.lightning",
    "prefect_ft.inprocess.torch_store",
}


@pytest.mark.skipif(PYTHON39 is None, reason="needs Python 3.9")
def test_the_oldest_python_loads_all_of_the_workers_side(runtime_dir: Path) -> None:
    """Each module in its turn, compiled and loaded; those that need a framework only say that it is not there."""
    payload = payload_directory(runtime_dir)
    names = sorted(
        ".".join(path.relative_to(payload).with_suffix("").parts)
        for path in (payload / "prefect_ft").rglob("*.py")
        if path.stem not in ("__main__", "__init__", "sitecustomize")
    )
    code = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] == "prefect_ft":
            raise
        print(name)
"""
    loaded = subprocess.run(
        [PYTHON39, "-I", "-S", "-c", code, str(payload), *names], capture_output=True, text=True, check=False
    )
    assert loaded.returncode == 0, loaded.stderr
    assert set(loaded.stdout.split()) <= NEED_A_FRAMEWORK
    assert len(names) > 40


@pytest.mark.skipif(PYTHON39 is None, reason="needs Python 3.9")
def test_the_oldest_python_runs_an_attempt(start_agent: StartAgent, tmp_path: Path) -> None:
    gates, saved = [Gate(tmp_path / f"gate{rank}") for rank in (0, 1)], tmp_path / "ck"
    agent = start_agent(python=PYTHON39, checkpoints=checkpoints(saved, settle_s=0.0))
    client = agent.attached()
    client.say("choose", token=[1, 0, 1], limit=None, avoid=[], deaths=[])
    assert client.expect("chosen")["step"] is None
    code = """
import os, sys
from prefect_ft.heartbeat import beat
beat(step=3, stage="train")
print(sys.version_info[:2])
open("gate" + os.environ["RANK"]).read()
os.makedirs("ck", exist_ok=True)
open("ck/.tmp", "w").write("x")
os.replace("ck/.tmp", "ck/step-3.bin")
sys.exit(5)
"""
    client.start([PYTHON39, "-S", "-u", "-c", code], ranks=2, cwd=str(tmp_path))
    client.expect("beat", rank=1, step=3, stage="train")
    client.expect_printed("(3, 9)\n", rank=0)
    for rank, gate in enumerate(gates):
        gate.open()
        client.expect("exited", rank=rank, code=5)
    client.stop()
    assert client.expect("checkpoints")["last"] == 3
    client.say("leave", token=[1, 0, 1])
    client.hear_to_the_end()
    assert agent.process.wait(timeout=30) == 0
    assert agent.log == ""


def test_an_agent_may_make_its_socket_itself(runtime_dir: Path, make_worker: MakeWorker) -> None:
    """As in a container, where nobody can hand it one; the socket of an earlier life is in the way."""
    payload = next(make_worker().home.parent.parent.glob("payload-*"))
    config = write_agent_config(runtime_dir / "own")
    path = runtime_dir / "own" / "agent.sock"
    for _ in range(2):
        agent = subprocess.Popen([sys.executable, "-I", "-S", str(payload), str(config)])
        client = connected(path.parent, agent)
        assert client.attach()["pid"] == agent.pid
        agent.kill()
        agent.wait()
        client.close()
        assert path.exists()
    wait_until_ended(agent.pid)


def connected(home: Path, agent: subprocess.Popen[bytes]) -> AgentClient:
    """Connect as soon as somebody listens."""
    while agent.poll() is None:
        try:
            return AgentClient(address_of(home))
        except OSError:
            time.sleep(0.002)
    raise AssertionError("the agent has ended")
