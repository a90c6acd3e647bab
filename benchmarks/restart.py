"""Crash of one rank until all ranks of the next attempt are in `main()`: ours, and a bare Popen loop.

Ours goes the whole way: agent, supervisor, journal with fsync, decision, Prefect's retry, checkpoint
choice, start. The Popen loop does nothing but wait, kill and start again: what no launcher can beat.
Both start the same script with the same interpreter, in turn.

    python -m benchmarks.restart [--json FILE] [--quick]
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.harness import OURS, Results, finish, options, row, workplace

CASE = "crash→main"
SCRIPT = """
import os, sys, time, zipfile
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def log(what):
    line = f"{what} {attempt} {rank} {time.monotonic():.6f}\\n"
    with open(os.environ["EVENTS"], "a") as file:
        file.write(line)

def main():
    log("main")
    if attempt >= int(os.environ["CRASHES"]):
        return
    if rank == 0:
        step = attempt + 1
        with zipfile.ZipFile(f"checkpoints/.tmp-{step}", "w") as file:
            file.writestr("weights", "x" * 1000)
        os.replace(f"checkpoints/.tmp-{step}", f"checkpoints/step-{step}.npz")
    time.sleep(float(os.environ["WORK_S"]))
    if rank == 1:
        log("crash")
        os._exit(1)
    time.sleep(60)

if __name__ == "__main__":
    main()
"""


def popen_loop(directory: Path, ranks: int, crashes: int, work_s: float) -> None:
    """Do what a launcher must at least do: wait for the rank that ends, kill the others, start all again."""
    for attempt in range(crashes + 1):
        processes = [
            subprocess.Popen(
                [sys.executable, "script.py"],
                cwd=directory,
                env=_environment(
                    directory, crashes, work_s, RANK=str(rank), TORCHELASTIC_RESTART_COUNT=str(attempt)
                ),
            )
            for rank in range(ranks)
        ]
        processes[1].wait()
        if attempt < crashes:
            for process in processes:
                process.kill()
        for process in processes:
            process.wait()


def train_flow_run(directory: Path, ranks: int, crashes: int, work_s: float) -> None:
    """Run the same script as a job of one phase."""
    from prefect_ft import JobConfig, train_flow

    job = JobConfig.model_validate(
        {
            "name": "benchmark",
            "model_dir": "model",
            "autorestart": {"max_num_restarts": 128, "stop_on_repeat": 0},
            "env": _own_environment(directory, crashes, work_s),
            "phases": [
                {
                    "name": "restart",
                    "command": [sys.executable, "script.py"],
                    "nproc_per_worker": ranks,
                    "checkpoints": {"path": "checkpoints"},
                }
            ],
        }
    )
    summary = train_flow(job.at(directory))[0]
    assert summary["restarts"] == {"restart_in_place": crashes}, summary["restarts"]


def _own_environment(directory: Path, crashes: int, work_s: float) -> dict[str, str]:
    return {"EVENTS": str(directory / "events"), "CRASHES": str(crashes), "WORK_S": str(work_s)}


def _environment(directory: Path, crashes: int, work_s: float, **own: str) -> dict[str, str]:
    return {**os.environ, **_own_environment(directory, crashes, work_s), **own}


def crash_to_main_ms(events: Path) -> list[float]:
    """Give, for each crash, the milliseconds until the last rank of the next attempt was in `main()`."""
    crashed: dict[int, float] = {}
    entered: dict[int, list[float]] = defaultdict(list)
    for line in events.read_text().splitlines():
        what, attempt, _, at = line.split()
        if what == "crash":
            crashed[int(attempt)] = float(at)
        else:
            entered[int(attempt)].append(float(at))
    return [1000 * (max(entered[attempt + 1]) - at) for attempt, at in crashed.items()]


def measure(side: str, ranks: int, crashes: int, work_s: float = 0.5) -> list[float]:
    """Have one side crash and come back `crashes` times; each attempt works for so long before it crashes."""
    with workplace(SCRIPT) as directory:
        {"popen": popen_loop, OURS: train_flow_run}[side](directory, ranks, crashes, work_s)
        return crash_to_main_ms(directory / "events")


def main() -> None:
    """Measure both sides in turn, some rounds of some crashes each."""
    arguments = options("Crash of one rank until all ranks of the next attempt are in main().")
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
    rounds, crashes = (2, 3) if arguments.quick else (6, 5)
    sides = [OURS] if arguments.no_peers else ["popen", OURS]
    results = Results()
    for ranks in (2, 4):
        values: dict[str, list[float]] = defaultdict(list)
        for _ in range(rounds):
            for side in sides:
                values[side] += measure(side, ranks, crashes)
        rows = [row(side, CASE, values[side], ranks=ranks) for side in sides]
        results.rows += rows
        if len(rows) == 2:
            results.notes.append(f"W={ranks}: {rows[1].median - rows[0].median:.1f} ms above the Popen loop")
    finish(results, arguments)


if __name__ == "__main__":
    main()
