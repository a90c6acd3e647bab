"""What a call of `beat` costs a rank: bare, with a step and a stage, with values, and with a sample that changes.

One process, the best of several runs of 100,000 calls each; the loop around the calls is measured too and taken off.

    python -m benchmarks.beat [--json FILE] [--quick]
"""

from __future__ import annotations

import os
import tempfile
import timeit
from pathlib import Path

from benchmarks.harness import OURS, Results, finish, options, row

CALLS = 100_000
STATEMENTS = {
    "beat()": "beat()",
    "beat(step, stage)": "beat(step, 'train')",
    "beat(step, loss)": "beat(step, 'train', loss=loss)",
    "beat(step, loss, grad_norm)": "beat(step, 'train', loss=loss, grad_norm=loss)",
    "beat(step, loss, grad_norm, sample)": "beat(step, 'train', loss=loss, grad_norm=loss, sample=samples[step % 64])",
    "skips(step) of two windows": "skips(step)",
}
SETUP = """
from prefect_ft.heartbeat import beat, skips
loss, samples = 2.5, [f"shard-{number}" for number in range(64)]
for step in range(3):
    beat(step, "train", loss=loss, grad_norm=loss, sample=samples[step])
"""


def measure_us(statement: str, repeat: int) -> list[float]:
    """Return what one call took in each run, the loop around it taken off."""
    loop = f"for step in range({CALLS}): "
    empty_s = min(timeit.repeat(f"{loop}step", number=1, repeat=repeat, setup=SETUP))
    taken_s = timeit.repeat(loop + statement, number=1, repeat=repeat, setup=SETUP)
    return [1e6 * (each - empty_s) / CALLS for each in taken_s]


def main() -> None:
    """Measure each way of calling."""
    arguments = options("What a call of `beat` costs a rank.")
    results = Results()
    with tempfile.TemporaryDirectory(prefix="pft-bench-") as directory:
        os.environ["PREFECT_FT_HEARTBEAT"] = str(Path(directory) / "rank0")
        os.environ["PREFECT_FT_SKIP_STEPS"] = "195-234,301-310"
        for case, statement in STATEMENTS.items():
            taken_us = measure_us(statement, 5 if arguments.quick else 25)
            results.rows.append(row(OURS, case, taken_us, unit="µs"))
    finish(results, arguments)


if __name__ == "__main__":
    main()
