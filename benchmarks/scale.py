"""What the orchestrator takes, by the number of workers: while nothing happens, and to restart all of them.

Agents without ranks on this machine, each a process of its own, and for `--many` as many in each of a few
processes as fit: the real agents, which speak the real protocol. A restart is `stop` and `start` as a restart
in place orders them, from before the first order is sent until the last agent has answered; the agents' own
work is in it, on the same processors. Besides, a whole run whose workers have a rank each that sleeps.

    python -m benchmarks.scale [--json FILE] [--quick] [--agents 200] [--many 2000] [--only few|many|run]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.crew import Crew
from benchmarks.harness import OURS, Results, Row, finish, options, row
from benchmarks.watch import Meter, idle_job
from prefect_ft.backends.base import Address, AgentSettings, Worker
from prefect_ft.backends.home import SOCKET, home_of, write_agent_config
from prefect_ft.backends.process.backend import ProcessBackend
from prefect_ft.orchestrate.plan import phase_plan
from prefect_ft.orchestrate.run import begin_run, held
from prefect_ft.run import made_runtime_directory, vacancy
from prefect_ft.supervisor import PhasePlan
from prefect_ft.supervisor.calls import Calls
from prefect_ft.supervisor.enact import first_gang
from prefect_ft.supervisor.launch import Launch, start_orders
from prefect_ft.worker import frames

FEW, MANY, RUN = "few", "many", "run"
HOSTS = 8
"""Processes that the many agents share."""

IDLE_S = 20.0
RESTARTS = 20


class SharedBackend(ProcessBackend):
    """Has its agents served by a few processes, many in each; for agents that have no ranks."""

    def __init__(self, settings: AgentSettings, directory: Path) -> None:
        super().__init__(settings, directory, {})
        self._own = settings
        self._below = directory
        self._hosts: list[subprocess.Popen[str]] = []

    def create(self, workers: Sequence[Worker]) -> list[Address]:
        """Start the agents, and wait until all of them listen."""
        homes = [home_of(self._below, 0, worker) for worker in workers]
        for home, worker in zip(homes, workers, strict=True):
            home.mkdir(mode=0o700)
            write_agent_config(home, self._own, worker)
        self._hosts = [self._host(homes[number::HOSTS]) for number in range(HOSTS)]
        for host in self._hosts:
            assert host.stdout is not None
            assert host.stdout.readline() == "up\n"
        return [Address(socket_path=home / SOCKET, host="127.0.0.1") for home in homes]

    def _host(self, homes: Sequence[Path]) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "benchmarks.scale_agents", *map(str, homes)]
        root = Path(__file__).parents[1]
        return subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def end(self) -> None:
        """End all of them."""
        for host in self._hosts:
            host.kill()
            host.communicate()


@dataclass
class Crowd:
    """A gang of agents without ranks, as a phase of a held run has it."""

    gang: Crew
    plan: PhasePlan
    size: int
    before: tuple[float, int]
    """Memory (KiB) and open descriptors of this process before it was attached to them."""
    attached_s: float
    attempt: int = 0

    @property
    def token(self) -> tuple[int, int, int]:
        return 1, 0, self.attempt

    def restart(self) -> tuple[float, float, float]:
        """Return how many milliseconds `stop` took, `start` took, and this process computed for both."""
        began_s, cpu_s = time.monotonic(), time.process_time()
        self.gang.stop(self.token, 0)
        stopped_s = time.monotonic()
        self.attempt += 1
        self.gang.start(self.orders(), self.token)
        started_s, computed_s = time.monotonic(), time.process_time() - cpu_s
        return 1000 * (stopped_s - began_s), 1000 * (started_s - stopped_s), 1000 * computed_s

    def orders(self) -> dict[int, dict[str, object]]:
        """Return what a restart in place tells every agent, but for the ranks."""
        placement = self.plan.policy.systems
        launch = Launch(
            attempt=self.attempt,
            restarts=self.attempt - 1,
            decision=None,
            placement=placement,
            start_counts=((1, self.attempt),) * self.size,
            master=self.gang.gang.master,
            has_store=False,
            in_process_port=self.gang.gang.in_process_port,
            in_process_key=self.gang.gang.in_process_key,
            resume_step=100,
            resume_path="/checkpoints/step-100",
            skipped={},
            skip_eval_at_step=None,
        )
        note = {"placement": list(placement), "start_counts": [list(each) for each in launch.start_counts]}
        return {
            worker: {**order, "ranks": {}} for worker, order in start_orders(self.plan, launch, note).items()
        }

    def idle_share(self, for_s: float) -> float:
        """Return the share of a core, in percent, that this process takes while nothing happens."""
        began_s, cpu_s = time.monotonic(), time.process_time()
        self.gang.serve(lambda: False, for_s)
        return 100 * (time.process_time() - cpu_s) / (time.monotonic() - began_s)

    def sizes(self) -> dict[str, tuple[float, str]]:
        """Return what an agent costs this process, and what a restart sends to one."""
        memory_kb, descriptors = _held()
        sent = [len(frames.encode({"op": "start", **order})) for order in self.orders().values()]
        return {
            "supervisor's memory, an agent": ((memory_kb - self.before[0]) / self.size, "KiB"),
            "supervisor's descriptors, an agent": ((descriptors - self.before[1]) / self.size, ""),
            "a start order": (statistics.median(sent) / 1024, "KiB"),
            "the first worker's start order": (sent[0] / 1024, "KiB"),
        }


@contextmanager
def crowd(size: int, *, shared: bool) -> Iterator[Crowd]:
    """A gang of so many agents, attached to; they end with it."""
    with tempfile.TemporaryDirectory(prefix="pft-scale-") as name:
        job = idle_job(Path(name), size)
        with held(begin_run(job, vacancy(Path(job.model_dir))), job) as (holding, stop):
            runtime = made_runtime_directory(Path(name) / "run")
            plan = phase_plan(job, 0, holding.run, Path(name), lines=(), isolated=())
            settings = AgentSettings(
                run_id=holding.run.run_id,
                key=holding.run.key,
                phase_index=0,
                sample_period_s=job.sample_period_s,
                orphan_timeout_s=job.orphan_timeout_s,
                spool_bytes=job.spool_mb << 20,
                checkpoints=None,
            )
            backend = SharedBackend(settings, runtime) if shared else ProcessBackend(settings, runtime, {})
            gang = Crew(
                backend,
                run_id=holding.run.run_id,
                phase_index=0,
                key=holding.run.key,
                epoch=holding.lease.epoch,
                stop=stop,
                calls=Calls(),
                listener=lambda *_: None,
                mask=lambda event: event,
                check=holding.lease.check,
            )
            before, began_s = _held(), time.monotonic()
            gang.change(first_gang(size), plan.policy.systems, 0)
            try:
                yield Crowd(gang, plan, size, before, time.monotonic() - began_s)
            finally:
                if isinstance(backend, SharedBackend):
                    gang.hang_up()
                    backend.end()
                else:
                    gang.close()


def _held() -> tuple[float, int]:
    return psutil.Process().memory_info().rss / 1024, len(os.listdir("/proc/self/fd"))


def measured(size: int, idle_s: float, restarts: int, *, shared: bool) -> list[Row]:
    """Measure a crowd of so many agents."""
    settings = f"{HOSTS} processes" if shared else "a process each"
    with crowd(size, shared=shared) as agents:
        time.sleep(2)  # the last of what agents do once they are attached
        idle = agents.idle_share(idle_s)
        agents.restart()  # the first one imports
        times = [agents.restart() for _ in range(restarts)]
        rows = {
            "created and attached": ([agents.attached_s], "s"),
            "supervisor while nothing happens, share of a core": ([idle], "%"),
            "restart order → last answer": ([stop + start for stop, start, _ in times], "ms"),
            "stop → last stopped": ([stop for stop, _, _ in times], "ms"),
            "start → last started": ([start for _, start, _ in times], "ms"),
            "supervisor's processor time for it": ([cpu for _, _, cpu in times], "ms"),
            **({case: ([value], unit) for case, (value, unit) in agents.sizes().items()} if shared else {}),
        }
    return [
        row(OURS, case, values, unit=unit, settings=settings, ranks=size)
        for case, (values, unit) in rows.items()
    ]


def watched_run(size: int, measure_s: float) -> list[Row]:
    """Measure a whole run whose workers have a rank each that sleeps: samples come all the time."""
    from prefect_ft import train_flow

    with tempfile.TemporaryDirectory(prefix="pft-scale-") as name:
        meter = Meter(size, measure_s)
        meter.start()
        state = train_flow(idle_job(Path(name), size), return_state=True)
        assert state.is_cancelled(), state
    figures = {
        "whole run with sleeping ranks: supervisor, share of a core": ([meter.supervisor_share], "%"),
        "whole run with sleeping ranks: one agent, share of a core": (meter.agent_shares, "%"),
    }
    return [row(OURS, case, values, unit=unit, ranks=size) for case, (values, unit) in figures.items()]


def main() -> None:
    """Measure few agents, many agents, and a whole run of few."""
    extra: list[tuple[str, dict[str, Any]]] = [
        ("--agents", {"type": int, "default": 200}),
        ("--many", {"type": int, "default": 2000}),
        (
            "--only",
            {"choices": (FEW, MANY, RUN), "action": "append", "help": "that part; several may be given"},
        ),
    ]
    arguments = options("What the orchestrator takes, by the number of workers.", extra)
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
    with crowd(2, shared=True) as two:  # what is loaded once is no agent's
        two.restart()
    idle_s, restarts = (5.0, 3) if arguments.quick else (IDLE_S, RESTARTS)
    parts = {
        MANY: lambda: measured(arguments.many, idle_s, restarts, shared=True),
        FEW: lambda: measured(arguments.agents, idle_s, restarts, shared=False),
        RUN: lambda: watched_run(arguments.agents, 1.5 * idle_s),
    }
    rows = [each for part in arguments.only or parts for each in parts[part]()]
    finish(Results(rows=rows), arguments)


if __name__ == "__main__":
    main()
