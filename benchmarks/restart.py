"""Crash of one rank until all ranks of the next attempt are in `main()`: ours, torchrun, and a bare Popen loop.

Ours goes the whole way: agent, supervisor, journal with fsync, decision, Prefect's retry, checkpoint
choice, start; as it comes (`warm: auto`: the script imports next to nothing) and with `warm: off`. torchrun has
the shortest monitor interval. The Popen loop does nothing but wait, kill and start again: what no launcher that
starts processes can beat. All start the same script with the same interpreter, in turn.

    python -m benchmarks.restart [--json FILE] [--quick] [--venv DIRECTORY]
"""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import OURS, Results, finish, options, row, workplace
from benchmarks.launchers import VENV_OPTION, interpreter_of, launch

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


class Course(NamedTuple):
    """How many ranks crash how often, each time after so much work."""

    ranks: int
    crashes: int
    work_s: float = 0.5


def popen_loop(python: Path, directory: Path, course: Course) -> None:
    """Do what a launcher must at least do: wait for the rank that ends, kill the others, start all again."""
    for attempt in range(course.crashes + 1):
        processes = [
            subprocess.Popen(
                [str(python), "script.py"],
                cwd=directory,
                env=_environment(directory, course, RANK=str(rank), TORCHELASTIC_RESTART_COUNT=str(attempt)),
            )
            for rank in range(course.ranks)
        ]
        processes[1].wait()
        if attempt < course.crashes:
            for process in processes:
                process.kill()
        for process in processes:
            process.wait()


def torchrun(python: Path, directory: Path, course: Course) -> None:
    """Have torchrun run the same script."""
    env = _own_environment(directory, course)
    launch("torchrun", ".01", python, directory, course.ranks, crashes=course.crashes, env=env)


def train_flow_run(warm: str, python: Path, directory: Path, course: Course) -> None:
    """Run the same script as a job of one phase."""
    from prefect_ft import JobConfig, train_flow

    job = JobConfig.model_validate(
        {
            "name": "benchmark",
            "model_dir": "model",
            "autorestart": {"max_num_restarts": 128, "stop_on_repeat": 0},
            "env": _own_environment(directory, course),
            "phases": [
                {
                    "name": "restart",
                    "command": [str(python), "script.py"],
                    "nproc_per_worker": course.ranks,
                    "warm": warm,
                    "checkpoints": {"path": "checkpoints"},
                }
            ],
        }
    )
    summary = train_flow(job.at(directory))[0]
    assert summary["restarts"] == {"restart_in_place": course.crashes}, summary["restarts"]


def _own_environment(directory: Path, course: Course) -> dict[str, str]:
    return {"EVENTS": str(directory / "events"), "CRASHES": str(course.crashes), "WORK_S": str(course.work_s)}


def _environment(directory: Path, course: Course, **own: str) -> dict[str, str]:
    return {**os.environ, **_own_environment(directory, course), **own}


def crash_to_main_ms(events: Path) -> list[float]:
    """Return, for each crash, the milliseconds until the last rank of the next attempt was in `main()`."""
    crashed: dict[int, float] = {}
    entered: dict[int, list[float]] = defaultdict(list)
    for line in events.read_text().splitlines():
        what, attempt, _, at = line.split()
        if what == "crash":
            crashed[int(attempt)] = float(at)
        else:
            entered[int(attempt)].append(float(at))
    return [1000 * (max(entered[attempt + 1]) - at) for attempt, at in crashed.items()]


Side = Callable[[Path, Path, Course], None]

cold: Side = partial(train_flow_run, "off")

SIDES: dict[tuple[str, str], Side] = {
    ("popen", "default"): popen_loop,
    ("torchrun", "interval .01"): torchrun,
    ("cold", "warm: off"): cold,
    (OURS, "warm: auto"): partial(train_flow_run, "auto"),
}


def measure(side: Side, python: Path, course: Course) -> list[float]:
    """Have one side crash and come back; return how long each time took, in ms."""
    with workplace(SCRIPT) as directory:
        side(python, directory, course)
        return crash_to_main_ms(directory / "events")


def main() -> None:
    """Measure all sides in turn, some rounds of some crashes each."""
    arguments = options("Crash of one rank until all ranks of the next attempt are in main().", [VENV_OPTION])
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
    rounds, crashes = (2, 3) if arguments.quick else (6, 5)
    python = interpreter_of(arguments.venv)
    sides = {
        key: side
        for key, side in SIDES.items()
        if key[0] not in ("popen", "torchrun") or not arguments.no_peers
    }
    results = Results()
    for ranks in (2, 4, 8):
        values: dict[tuple[str, str], list[float]] = defaultdict(list)
        for _ in range(rounds):
            for key, side in sides.items():
                values[key] += measure(side, python, Course(ranks, crashes))
        results.rows += [
            row(name, CASE, values[name, settings], ranks=ranks, settings=settings)
            for name, settings in sides
        ]
    results.notes.append("cold is prefect-ft too, with warm: off")
    finish(results, arguments)


if __name__ == "__main__":
    main()
