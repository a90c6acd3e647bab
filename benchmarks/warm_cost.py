"""What `warm: auto` costs whoever does not fail: the first start, and a loop beside zygote and parked ranks.

Two ranks with torch, with `warm: auto` and with `warm: off`, in turn. The first attempt is looked at to learn what
ranks import; its ranks tell the time from their process's start to their first optimizer step. The second one runs
beside what is parked for the third: its rank 0 tells how long a number of steps of a Python loop takes.

    python -m benchmarks.warm_cost [--json FILE] [--quick] [--venv DIRECTORY]
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.harness import OURS, Results, finish, options, row
from benchmarks.restart_torch import interpreter_of

SCRIPT = """
import json, os, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["PREFECT_FT_ATTEMPT"])
import torch
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(32, 64)).square().mean().backward()
optimizer.step()
ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
took_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")

def tell(what, seconds):
    with open(os.environ["EVENTS"], "a") as file:
        file.write(json.dumps([what, seconds]) + "\\n")

if attempt == 1:
    tell("first start", took_s)
    time.sleep(float(os.environ["LEARNING_S"]))  # until nothing is imported any more, and all is parked
    os._exit(rank)
time.sleep(3)
if rank == 0:
    began_s = time.perf_counter()
    for _ in range(300):
        sum(range(100_000))
    tell("loop", time.perf_counter() - began_s)
"""


def run(python: Path, warm: str) -> dict[str, list[float]]:
    """Run the job once; give the seconds that its ranks tell."""
    from prefect_ft import JobConfig, train_flow

    with tempfile.TemporaryDirectory(prefix="pft-bench-") as name:
        directory = Path(name)
        (directory / "script.py").write_text(SCRIPT)
        events = directory / "events"
        phase = {
            "name": "warm", "mode": "eval", "command": [str(python), "script.py"], "nproc_per_worker": 2,
            "warm": warm,
        }  # fmt: skip
        env = {"EVENTS": str(events), "LEARNING_S": "20", "OMP_NUM_THREADS": "1"}
        restarts = {"max_num_restarts": 3}
        job = {
            "name": "benchmark",
            "model_dir": "model",
            "autorestart": restarts,
            "env": env,
            "phases": [phase],
        }
        summary = train_flow(JobConfig.model_validate(job).at(directory))[0]
        assert summary["status"] == "completed", summary["reason"]
        told = defaultdict(list)
        for line in events.read_text().splitlines():
            what, seconds = json.loads(line)
            told[what].append(1000 * seconds)
        return told


def main() -> None:
    """Measure both settings in turn."""
    arguments = options(
        "What `warm: auto` costs whoever does not fail.",
        [("--venv", {"type": Path, "default": Path(".benchmark-venv"), "help": "where torch is or is put"})],
    )
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
    python = interpreter_of(arguments.venv)
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(2 if arguments.quick else 7):
        for warm in ("off", "auto"):
            for what, times in run(python, warm).items():
                values[what, warm] += times
    results = Results()
    results.rows += [
        row(OURS, what, times, settings=f"warm: {warm}", ranks=2) for (what, warm), times in values.items()
    ]
    for what in ("first start", "loop"):
        ratio = min(values[what, "off"]) / min(values[what, "auto"])
        results.notes.append(f"{what}, the best of off over the best of auto: {ratio:.4f}")
    finish(results, arguments)


if __name__ == "__main__":
    main()
