"""A run whose orchestrator dies on one machine, or is cut off there, and comes back on another.

Where workers are on an engine that both reach they are adopted. Where they are processes of the first machine the
other one leaves them alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from agents import processes_of
from deaths import journals, of_type
from engine import IMAGE, engine, tls_of
from engine import why_not as why_no_engine
from machines import Machine, address_in, machines, network, why_not

from prefect_ft.backends.docker.engine import connect
from prefect_ft.run import latest_run
from tests.conftest import need

pytestmark = pytest.mark.timeout(900)

SCRIPT = """
import os, time
from pathlib import Path
from prefect_ft import heartbeat

rank, attempt = int(os.environ["RANK"]), int(os.environ["PREFECT_FT_ATTEMPT"])
with open("starts", "a") as starts:
    starts.write(f"{attempt} {rank} {os.uname().nodename} {os.environ['MASTER_ADDR']}\\n")
step = 0
while not Path("go").exists():
    step += 1
    heartbeat.beat(step=step)
    print("step", step, flush=True)
    if (rank, attempt) == (1, 1) and Path("fail").exists():
        raise ConnectionError("reset")
    time.sleep(0.05)
print("the end", flush=True)
"""
LEASE_S = 3
PATIENCE_S = 240.0
"""How long a command may take: each makes the database of a Prefect server of its own."""

SEAM = 10
"""How many lines, of some two hundred, may stand in the log twice."""

PROCESSES = "{type: process, systems: [s0, s1], workers: 2}"


def write_job(directory: Path, infrastructure: str) -> None:
    (directory / "train.py").write_text(SCRIPT)
    (directory / "job.yaml").write_text(
        f"name: wanders\nmodel_dir: model\nlease_s: {LEASE_S}\nsample_period_s: 0.5\n"
        f"infrastructure: {infrastructure}\nautorestart: {{max_num_restarts: 3}}\n"
        f"phases: [{{name: train, mode: eval, command: [python, -S, train.py], cwd: {directory}}}]\n"
    )


class Pair:
    """Two machines that share a directory, and the command line on them."""

    def __init__(
        self, first: Machine, second: Machine, shared: Path, certificates: Path | None = None
    ) -> None:
        self.first, self.second, self.shared = first, second, shared
        self._env = {"PYTHONUNBUFFERED": "1"}
        if certificates is not None:
            self._env["DOCKER_CERT_PATH"] = str(certificates)

    def call(self, machine: Machine, *words: str) -> subprocess.Popen[bytes]:
        """Call the command line on a machine."""
        home = {"PREFECT_HOME": f"{os.environ['PREFECT_FT_RUNTIME_DIR']}/prefect"}
        command = ["env", "-u", "PREFECT_API_URL", sys.executable, "-m", "prefect_ft.cli", *words]
        return machine.popen(command, env={**self._env, **home}, log=self._log(machine))

    def said(self, machine: Machine) -> str:
        """Return all that the command line has said on a machine."""
        log = self._log(machine)
        return log.read_text() if log.exists() else ""

    def _log(self, machine: Machine) -> Path:
        return self.shared.parent / f"{self.shared.name}-{machine.name}.log"

    def wait_for(self, program: subprocess.Popen[bytes], holds: Callable[[], Any]) -> None:
        """Wait until something holds while a program lives."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds():
            said = self.said(self.first) + self.said(self.second)
            assert program.poll() is None, said
            assert time.monotonic() < deadline_s, said
            time.sleep(0.02)

    def starts(self) -> list[list[str]]:
        """Return attempt, rank, container and MASTER_ADDR of each start of a rank."""
        file = self.shared / "starts"
        return sorted(line.split() for line in file.read_text().splitlines()) if file.exists() else []

    def comebacks(self) -> list[dict[str, Any]]:
        return list(of_type(journals(self.shared / "model")["train"], "comeback"))

    def begin(self) -> subprocess.Popen[bytes]:
        """Have the first machine run the job, and wait until both ranks train."""
        program = self.call(self.first, "run", "job.yaml")
        self.wait_for(program, lambda: len(self.starts()) == 2 and self._has_printed())
        return program

    def _has_printed(self) -> bool:
        logs = list(self.shared.glob("model/*/run.log"))
        return bool(logs) and {"w0 r0] step 1\n", "w1 r1] step 1\n"} <= {
            line.partition(" ")[2] for line in logs[0].read_text().splitlines(keepends=True)
        }

    def let_end(self, program: subprocess.Popen[bytes]) -> None:
        """Let the ranks end, and the run with them."""
        (self.shared / "go").touch()
        assert program.wait(PATIENCE_S) == 0, self.said(self.first) + self.said(self.second)
        run = latest_run(self.shared / "model")
        assert run is not None
        assert run.status == "completed"


def steps_of(shared: Path, attempt: int, rank: int) -> list[int]:
    """Return the steps of a rank in the order in which they stand in the log."""
    (log,) = shared.glob("model/*/run.log")
    prefix = f"[a{attempt} w{rank} r{rank}] step "
    return [
        int(line.removeprefix(prefix)) for line in log.read_text().splitlines() if line.startswith(prefix)
    ]


# -- an engine that both reach -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine_between() -> Iterator[tuple[int, str]]:
    """The number of a network of machines, and the URL of an engine that listens there by TLS."""
    need("machines", why_not() is None, str(why_not()))
    need("docker", why_no_engine() is None, str(why_no_engine()))
    with network() as number, engine(tls_at=address_in(number)) as own:
        own.make_image()
        yield number, own.url


@pytest.fixture
def containers(engine_between: tuple[int, str], tmp_path: Path, runtime_dir: Path) -> Iterator[Pair]:
    """Two machines, and a job whose workers are on the engine."""
    number, url = engine_between
    address, certificates = tls_of(url)
    shared = tmp_path / "shared"
    shared.mkdir()
    write_job(
        shared,
        f"{{type: docker, image: {IMAGE!r}, engine: '{address}', systems: [s0, s1], workers: 2, "
        f"volumes: ['{shared}:{shared}']}}",
    )
    with machines(tmp_path, number, shared, runtime_dir, "alpha", "beta") as (first, second):
        yield Pair(first, second, shared, certificates)
    with closing(connect(url)) as client:
        assert client.containers(all=True, filters={"label": "prefect-ft.run"}) == []


def assert_went_on(pair: Pair) -> None:
    """No rank started again in an attempt, and its steps are all in the log, those of both lives.

    What the first life had not acknowledged is told again, and stands there twice.
    """
    started = Counter((number, rank) for number, rank, *_ in pair.starts())
    assert set(started.values()) == {1}, pair.starts()
    for rank in (0, 1):
        steps = steps_of(pair.shared, 1, rank)
        assert sorted(set(steps)) == list(range(1, max(steps) + 1)), rank
        assert len(steps) - len(set(steps)) < SEAM, rank


@pytest.mark.long
def test_who_comes_back_on_another_machine_adopts_the_containers(containers: Pair) -> None:
    first = containers.begin()
    containers.first.kill(first)
    second = containers.call(containers.second, "resume", "model")
    containers.wait_for(second, containers.comebacks)
    (comeback,) = containers.comebacks()
    assert (comeback["adopted"], comeback["goes_on"], comeback["attempt"]) == ([0, 1], True, 1)
    (containers.shared / "fail").touch()
    containers.wait_for(second, lambda: len(containers.starts()) == 4)
    containers.let_end(second)
    assert_went_on(containers)
    before, after = containers.starts()[:2], containers.starts()[2:]
    assert [each[2:] for each in after] == [
        each[2:] for each in before
    ]  # in the same containers, and they meet


@pytest.mark.long
def test_who_was_cut_off_finds_the_run_taken_over_and_touches_nothing(containers: Pair) -> None:
    first = containers.begin()
    containers.first.cut()
    second = containers.call(containers.second, "resume", "model")
    containers.wait_for(second, containers.comebacks)
    (comeback,) = containers.comebacks()
    assert (comeback["adopted"], comeback["goes_on"]) == ([0, 1], True)
    containers.first.join()
    assert first.wait(PATIENCE_S) == 1, containers.said(containers.first)
    assert "epoch 2 has taken over from this one, of epoch 1" in containers.said(containers.first)
    assert journals(containers.shared / "model")["train"][-1] == comeback
    containers.let_end(second)
    assert_went_on(containers)


# -- processes of one of them ------------------------------------------------------------------------


@pytest.fixture
def processes(tmp_path: Path, runtime_dir: Path) -> Iterator[Pair]:
    """Two machines, and a job whose workers are processes."""
    need("machines", why_not() is None, str(why_not()))
    shared = tmp_path / "shared"
    shared.mkdir()
    write_job(shared, PROCESSES)
    with network() as number, machines(tmp_path, number, shared, runtime_dir, "alpha", "beta") as pair:
        yield Pair(*pair, shared)


def assert_refused(pair: Pair, machine: Machine, *words: str) -> None:
    assert pair.call(machine, *words).wait(PATIENCE_S) == 2, pair.said(machine)
    assert "may still train there: resume or cancel it on alpha" in pair.said(machine)


@pytest.mark.long
def test_processes_of_another_machine_are_left_alone(processes: Pair) -> None:
    first = processes.begin()
    processes.first.kill(first)
    alive = processes_of(processes.shared)
    for words in (("resume", "model"), ("cancel", "model"), ("run", "job.yaml", "--fresh")):
        assert_refused(processes, processes.second, *words)
    assert len(processes.starts()) == 2
    assert processes_of(processes.shared).keys() >= alive.keys()
    again = processes.call(processes.first, "resume", "model")
    processes.wait_for(again, processes.comebacks)
    (comeback,) = processes.comebacks()
    assert (comeback["adopted"], comeback["goes_on"]) == ([0, 1], True)
    processes.let_end(again)
    assert_went_on(processes)


@pytest.mark.long
def test_a_machine_that_was_started_again_under_another_name_is_the_same_one(processes: Pair) -> None:
    processes.begin()
    processes.first.stop()
    processes.first.name = "gamma"
    processes.first.start()
    again = processes.call(processes.first, "resume", "model")
    processes.wait_for(again, lambda: len(processes.starts()) == 4)
    processes.let_end(again)
    assert [each[:2] for each in processes.starts()] == [["1", "0"], ["1", "1"], ["2", "0"], ["2", "1"]]


@pytest.mark.long
def test_once_a_person_says_that_a_machine_is_off_another_one_goes_on(processes: Pair) -> None:
    processes.begin()
    processes.first.stop()
    assert_refused(processes, processes.second, "resume", "model")
    moved = processes.call(processes.second, "resume", "model", "--moved")
    processes.wait_for(moved, lambda: len(processes.starts()) == 4)
    processes.let_end(moved)
