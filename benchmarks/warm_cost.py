"""What `warm: auto` costs whoever does not fail: the first start, and a loop beside zygote and parked ranks.

A rank with torch in a job with `warm: auto` and one in a job with `warm: off`, at the same time: the machine is as
fast for the one as for the other, and what counts is each pair's ratio. The second attempt runs beside what is parked
for the third, and tells how long a number of steps of a Python loop takes; the ranks of a pair wait for each other
before each. The first one is looked at to learn what ranks import. What that takes is measured without the jobs, by
pairs of processes of which one is looked at: the processor time from start to end, after one optimizer step.

    python -m benchmarks.warm_cost [--json FILE] [--quick] [--venv DIRECTORY]
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.harness import OURS, Results, finish, options, row
from benchmarks.launchers import interpreter_of
from prefect_ft.worker.learner import DIRECTORY

STEP = """
import torch
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(32, 64)).square().mean().backward()
optimizer.step()
"""
SCRIPT = """
import json, os, pathlib, time
side, attempt = os.environ["SIDE"], int(os.environ["PREFECT_FT_ATTEMPT"])
pair = pathlib.Path(os.environ["PAIR"])

def meet(what):
    (pair / f"{what}-{side}").touch()
    while len(list(pair.glob(what + "-*"))) < 2:
        time.sleep(0.002)

def tell(what, seconds):
    (pair / f"{side} {what}").write_text(json.dumps(seconds))

"""
SCRIPT += STEP
SCRIPT += """
if attempt == 1:
    time.sleep(float(os.environ["LEARNING_S"]))  # until nothing is imported any more, and all is parked
    os._exit(1)
time.sleep(3)
for number in range(20):
    meet(f"loop {number}")
    began_s = time.perf_counter()
    for _ in range(300):
        sum(range(100_000))
    tell(f"loop {number}", time.perf_counter() - began_s)
"""
WARM = ("off", "auto")


def run(python: Path, pair: Path, warm: str) -> None:
    """Run one side's job; it meets the other side's ranks in the directory `pair`."""
    from prefect_ft import JobConfig, train_flow

    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
    with tempfile.TemporaryDirectory(prefix="pft-bench-") as name:
        directory = Path(name)
        (directory / "script.py").write_text(SCRIPT)
        phase = {"name": "warm", "mode": "eval", "command": [str(python), "script.py"], "warm": warm}
        env = {"SIDE": warm, "PAIR": str(pair), "LEARNING_S": "20", "OMP_NUM_THREADS": "1"}
        job = {
            "name": "benchmark",
            "model_dir": "model",
            "autorestart": {"max_num_restarts": 3},
            "env": env,
            "phases": [phase],
        }
        summary = train_flow(JobConfig.model_validate(job).at(directory))[0]
        assert summary["status"] == "completed", summary["reason"]


def measure(python: Path) -> dict[tuple[str, str], float]:
    """Run a pair; return the milliseconds that each side's rank told, by what and side."""
    with tempfile.TemporaryDirectory(prefix="pft-bench-") as name:
        context = multiprocessing.get_context("spawn")
        sides = [context.Process(target=run, args=(python, Path(name), warm)) for warm in WARM]
        for side in sides:
            side.start()
        for side in sides:
            side.join()
        told = {}
        for path in sorted(Path(name).glob("* *")):
            side_of, _, what = path.name.partition(" ")
            if side_of in WARM:
                told[what, side_of] = 1000 * float(path.read_text())
        return told


def first_starts_ms(python: Path) -> dict[str, float]:
    """Start two processes at once, one of them looked at as a first rank is; return the processor time of each."""
    with tempfile.TemporaryDirectory(prefix="pft-bench-") as name:
        plain = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
        watched = {**plain, "PYTHONPATH": DIRECTORY, "PREFECT_FT_IMPORTS": f"{name}/imports"}
        started = {
            warm: subprocess.Popen([python, "-W", "ignore", "-c", STEP], env=env)
            for warm, env in random.sample([("off", plain), ("auto", watched)], 2)
        }
        used = {}
        for warm, process in started.items():
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0
            used[warm] = 1000 * (usage.ru_utime + usage.ru_stime)
        assert Path(f"{name}/imports").stat().st_size
        return used


def main() -> None:
    """Measure pairs, one after the other."""
    arguments = options(
        "What `warm: auto` costs whoever does not fail.",
        [("--venv", {"type": Path, "default": Path(".benchmark-venv"), "help": "where torch is or is put"})],
    )
    python = interpreter_of(arguments.venv)
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(4 if arguments.quick else 12):
        for (_, warm), took_ms in measure(python).items():
            values["loop", warm].append(took_ms)
        for _ in range(10):
            for warm, took_ms in first_starts_ms(python).items():
                values["first", warm].append(took_ms)
    results = Results()
    for what, case in (("first", "first start, processor time"), ("loop", "loop")):
        results.rows += [row(OURS, case, values[what, warm], settings=f"warm: {warm}") for warm in WARM]
        ratios = [off / auto for off, auto in zip(values[what, "off"], values[what, "auto"], strict=True)]
        told = f"{statistics.median(ratios):.4f} ({min(ratios):.4f}-{max(ratios):.4f}) n={len(ratios)}"
        results.notes.append(f"{case}: off / auto, median of the pairs: {told}")
    finish(results, arguments)


if __name__ == "__main__":
    main()
