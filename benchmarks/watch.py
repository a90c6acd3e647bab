"""What watching costs: the watchers over many idle workers, and a training loop that is watched.

Reports the CPU time of the supervisor and of the agents as a share of one core, and the growth of their
memory between the first and the last quarter of the time. Then a loop of 1 ms steps, each with a heartbeat,
watched at the default period and side by side with one that is not: steps a second of both.

    python -m benchmarks.watch [--json FILE] [--quick] [--workers 64] [--minutes 10]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
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
    """Return a job of `workers` workers with one rank each that sleeps."""
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
    """Return by how much the mean of the last quarter is above that of the first."""
    quarter = max(1, len(samples) // 4)
    return sum(samples[-quarter:]) / quarter - sum(samples[:quarter]) / quarter


STEPS = 5000
"""Of 1 ms, in one turn of the loop."""

LOOP = f"""
import sys, time
sys.path.insert(0, sys.argv[1])
from prefect_ft.heartbeat import beat
def step():
    end = time.perf_counter() + 0.001
    while time.perf_counter() < end: pass
turns = int(sys.argv[2])
for turn in range(turns):
    began = time.perf_counter()
    for number in range({STEPS}):
        step()
        beat(step=number)
    print("turn", {STEPS} / (time.perf_counter() - began), flush=True)
"""


def loop_job(directory: Path, turns: int) -> JobConfig:
    """Return a job of one rank that runs the loop."""
    root = str(Path(__file__).parents[1])
    command = ["python", "-c", LOOP, root, str(turns)]
    phase = {"name": "loop", "command": command, "checkpoints": {"path": "ck"}}
    job = {"name": "loop", "model_dir": "model", "phases": [phase]}
    return JobConfig.model_validate(job).at(directory)


def loops(rounds: int, turns: int) -> tuple[list[float], list[float]]:
    """Return the steps a second of each turn, watched and by itself, side by side: the machine's moods meet both."""
    rates: tuple[list[float], list[float]] = ([], [])
    words = [sys.executable, "-c", LOOP, str(Path(__file__).parents[1]), str(turns)]
    for _ in range(rounds):
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as alone:
            rates[0].extend(watched(turns))
            rates[1].extend(_rates(alone.communicate()[0]))
    return rates


def watched(turns: int) -> list[float]:
    """Return the steps a second of each turn where an agent and a supervisor watch."""
    from prefect_ft import train_flow

    with tempfile.TemporaryDirectory(prefix="pft-watch-") as name:
        train_flow(loop_job(Path(name), turns))
        return _rates(next(Path(name).glob("model/*_restartable/run.log")).read_text())


def _rates(text: str) -> list[float]:
    return [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if " turn " in f" {line}"]


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
    with_us, alone = loops(1 if arguments.quick else 4, 2 if arguments.quick else 5)
    supervisor, agents = ([sample[index] for sample in meter.memory] for index in (0, 1))
    results = Results(
        rows=[
            row(OURS, "supervisor, share of a core", [meter.supervisor_share], unit="%"),
            row(OURS, "one agent, share of a core", meter.agent_shares, unit="%"),
            row(OURS, "supervisor, memory growth", [growth_mb(supervisor)], unit="MiB"),
            row(OURS, "all agents, memory growth", [growth_mb(agents)], unit="MiB"),
            row(OURS, "1 ms steps", with_us, unit="steps/s", ranks=1),
            row("unwatched", "1 ms steps", alone, unit="steps/s", ranks=1),
        ],
        notes=[
            f"{arguments.workers} idle workers for {minutes:g} minutes at the default period",
            f"1 ms steps: watched / unwatched {statistics.median(with_us) / statistics.median(alone):.4f}",
        ],
    )
    finish(results, arguments)


if __name__ == "__main__":
    main()
