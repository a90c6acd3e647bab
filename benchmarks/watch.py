"""What watching costs: many workers whose ranks do nothing, one supervisor, for some minutes.

Reports the CPU time of the supervisor and of the agents as a share of one core, and the growth of their
memory between the first and the last quarter of the time.

    python -m benchmarks.watch [--json FILE] [--quick] [--workers 64] [--minutes 10]
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

import psutil

from benchmarks.harness import OURS, Results, finish, options, row
from prefect_ft import JobConfig

SETTLE_S = 15.0
"""After the start: interpreters still read their modules then, and that is not watching."""

SAMPLE_S = 5.0


def idle_job(directory: Path, workers: int) -> JobConfig:
    """Give a job of `workers` workers with one rank each that sleeps."""
    return JobConfig.model_validate(
        {
            "name": "watch",
            "model_dir": "model",
            "infrastructure": {
                "type": "process",
                "systems": [f"s{number}" for number in range(workers)],
                "workers": workers,
            },
            "stop_grace_s": 0,
            "phases": [{"name": "idle", "command": ["sleep", "1000000"], "checkpoints": {"path": "ck"}}],
        }
    ).at(directory)


class Meter(threading.Thread):
    """Reads CPU time and memory of this process and of the agents, then asks the run to stop."""

    def __init__(self, workers: int, measure_s: float) -> None:
        super().__init__(daemon=True)
        self._workers, self._measure_s = workers, measure_s
        self.supervisor_share = 0.0
        self.agent_shares: list[float] = []
        self.memory: list[tuple[float, float]] = []
        """Supervisor's and all agents' resident memory, MiB, one sample every `SAMPLE_S`."""

    def run(self) -> None:
        agents = self._agents()
        time.sleep(SETTLE_S)
        me = psutil.Process()
        begun_s, began = time.monotonic(), [_cpu_s(process) for process in (me, *agents)]
        while time.monotonic() - begun_s < self._measure_s:
            self.memory.append((_memory_mb([me]), _memory_mb(agents)))
            time.sleep(SAMPLE_S)
        elapsed_s = time.monotonic() - begun_s
        shares = [
            100 * (_cpu_s(process) - before) / elapsed_s
            for process, before in zip((me, *agents), began, strict=True)
        ]
        self.supervisor_share, *self.agent_shares = shares
        os.kill(os.getpid(), 2)

    def _agents(self) -> list[psutil.Process]:
        """Wait until every worker's agent and rank are there."""
        while True:
            children = psutil.Process().children()
            agents = [child for child in children if any("payload-" in word for word in _words(child))]
            if len(agents) == self._workers and all(agent.children() for agent in agents):
                return agents
            time.sleep(0.5)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _memory_mb(processes: list[psutil.Process]) -> float:
    return sum(process.memory_info().rss for process in processes) / 2**20


def growth_mb(samples: list[float]) -> float:
    """Give by how much the mean of the last quarter is above that of the first."""
    quarter = max(1, len(samples) // 4)
    return sum(samples[-quarter:]) / quarter - sum(samples[:quarter]) / quarter


def main() -> None:
    """Run the idle job, measure, and stop it as Ctrl-C would."""
    extra = [
        ("--workers", {"type": int, "default": 64}),
        ("--minutes", {"type": float, "default": 10.0}),
    ]
    arguments = options("What watching idle workers costs.", extra)
    minutes = 1.0 if arguments.quick else arguments.minutes
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
    with tempfile.TemporaryDirectory(prefix="pft-watch-") as name:
        from prefect_ft import train_flow

        meter = Meter(arguments.workers, 60 * minutes)
        meter.start()
        state = train_flow(idle_job(Path(name), arguments.workers), return_state=True)
        assert state.is_cancelled(), state
    supervisor, agents = ([sample[index] for sample in meter.memory] for index in (0, 1))
    results = Results(
        rows=[
            row(OURS, "supervisor, share of a core", [meter.supervisor_share], unit="%"),
            row(OURS, "one agent, share of a core", meter.agent_shares, unit="%"),
            row(OURS, "supervisor, memory growth", [growth_mb(supervisor)], unit="MiB"),
            row(OURS, "all agents, memory growth", [growth_mb(agents)], unit="MiB"),
        ],
        notes=[f"{arguments.workers} idle workers for {minutes:g} minutes at the default period"],
    )
    finish(results, arguments)


if __name__ == "__main__":
    main()
