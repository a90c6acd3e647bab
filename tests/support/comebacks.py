"""Orchestrators that are killed and come back, time after time, and what they leave behind.

`python comebacks.py JOB.yaml bare|flow` is one life: without Prefect, or as `prefect-ft resume` with a temporary
server of its own. It prints a line once it has heard of a step.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import preloaded
from agents import DEADLINE_S, processes_of

TRAINING = """
import os, time
from pathlib import Path
from prefect_ft import heartbeat
step = 0
while not Path("finish").exists():
    step += 1
    heartbeat.beat(step=step)
    if step % 20 == 0:
        print("step", step, flush=True)
    time.sleep(0.02)
heartbeat.beat(step=1000000)
"""
"""It prints more than a line for each life, and saves nothing: what grows is not what it saves."""

STARTS_S = 300.0
"""How long a life may take until it has heard of a step: a server's database is made in the first."""


def write_job(directory: Path, workers: int = 2) -> Path:
    (directory / "train.py").write_text(TRAINING)
    (directory / "checkpoints").mkdir()
    systems = ", ".join(f"s{number}" for number in range(workers))
    path = directory / "job.yaml"
    path.write_text(
        "name: comebacks\nmodel_dir: model\nsample_period_s: 0.5\norphan_timeout_s: 600\n"
        "max_orchestrator_restarts: 1000000\n"
        f"infrastructure: {{type: process, systems: [{systems}], workers: {workers}}}\n"
        "phases:\n"
        "  - {name: one, command: [python, -S, train.py], checkpoints: {path: checkpoints}, "
        f"cwd: {directory}}}\n"
    )
    return path


@dataclass(frozen=True)
class Measure:
    """What is there while an orchestrator watches. Sizes in KiB."""

    processes: tuple[int, ...]
    """Agents and ranks."""
    servers: int
    runtime_files: int
    model_files: int
    model_kb: int
    own_files: int
    own_threads: int
    own_kb: int
    agents_files: int
    agents_kb: int


class Life:
    """One orchestrator, from its start on."""

    def __init__(self, job: Path, kind: str) -> None:
        self._site = job.parent
        command = [sys.executable, __file__, str(job), kind]
        with (self._site / "orchestrator.log").open("ab") as log:
            self.process = preloaded.started(command, cwd=self._site, stdout=subprocess.PIPE, stderr=log)

    def has_come(self) -> None:
        """Wait until it watches."""
        assert self.process.stdout is not None
        with _in_time(STARTS_S):
            said = self.process.stdout.readline()
        assert said == b"watches\n", (self._site / "orchestrator.log").read_text()[-3000:]

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> int:
        """Wait for the end and return the exit code."""
        assert self.process.stdout is not None
        code = self.process.wait(STARTS_S)
        self.process.stdout.close()
        return code

    def measure(self) -> Measure:
        runtime, model = Path(os.environ["PREFECT_FT_RUNTIME_DIR"]), self._site / "model"
        pids, servers = sorted(processes_of(runtime)), servers_of(self._site)
        agents = [int(path.read_text().split()[0]) for path in runtime.glob("*/*/agent.pid")]
        return Measure(
            processes=tuple(pid for pid in pids if pid not in (self.process.pid, *servers)),
            servers=len(servers),
            runtime_files=sum(_count(path.parents[1]) for path in runtime.glob("*/0-0-*/agent.pid")),
            model_files=_count(model),
            model_kb=sum(path.stat().st_size for path in model.rglob("*") if path.is_file()) >> 10,
            own_files=_files(self.process.pid),
            own_threads=len(os.listdir(f"/proc/{self.process.pid}/task")),
            own_kb=_rss_kb(self.process.pid),
            agents_files=sum(map(_files, agents)),
            agents_kb=sum(map(_rss_kb, agents)),
        )


def servers_of(site: Path) -> list[int]:
    """The temporary servers of orchestrators of this site that live."""
    return [pid for pid, words in processes_of(site).items() if "prefect_ft.prefect_edge.embedded" in words]


def wait_until_no_server(site: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while (left := servers_of(site)) and time.monotonic() < deadline:
        time.sleep(0.05)  # each needs up to five seconds to write down what it was told
    assert left == []


def _count(directory: Path) -> int:
    return sum(1 for _ in directory.rglob("*"))


def _files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _rss_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


@contextmanager
def _in_time(limit_s: float) -> Iterator[None]:
    """Have what waits here fail after so long."""

    def fail(*_: object) -> None:
        raise TimeoutError(f"nothing came in {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, fail)
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, limit_s)
    began_s = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, max(0.1, left_s - (time.monotonic() - began_s)) if left_s else 0)
        signal.signal(signal.SIGALRM, before)


# -- a life -----------------------------------------------------------------------------------------


def _watch(fact: object) -> None:
    from prefect_ft.observe import StepReached

    if isinstance(fact, StepReached) and not _has_told:
        _has_told.append(fact)
        os.write(1, b"watches\n")


_has_told: list[object] = []


def _bare(path: Path) -> None:
    from without_prefect import to_the_end

    from prefect_ft.config import load_job
    from prefect_ft.orchestrate.phase import PhaseExecution
    from prefect_ft.orchestrate.run import begin_run, conclude, held, resume_run
    from prefect_ft.run import vacancy

    job = load_job(path)
    free = vacancy(Path(job.model_dir), job.lease_s)
    holding = begin_run(job, free) if free.previous is None else resume_run(free)
    with held(holding, job) as (_, stop):
        summary = PhaseExecution(job, 0, holding, stop).execute(to_the_end)
        conclude(holding, summary.status)


def _flow(path: Path) -> None:
    from prefect_ft import train_flow
    from prefect_ft.prefect_edge.embedded import own_server

    own_server()
    train_flow(path, "resume")


def main(path: Path, kind: str) -> None:
    from prefect_ft.observe import observed_by

    with observed_by(_watch):
        {"bare": _bare, "flow": _flow}[kind](path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
