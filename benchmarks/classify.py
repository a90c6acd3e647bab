"""What reading a log costs: a healthy one of a gigabyte, ones of nothing but errors, and the whole command.

Makes the logs itself, in a temporary directory. Reports megabytes a second and the peak of memory over the
long one, the same over dense ones (failures that differ in numbers, or in words), and the wall time of
`prefect-ft classify` on a healthy one of 50 MB.

    python -m benchmarks.classify [--json FILE] [--quick] [--no-peers] [--megabytes 1000]
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import OURS, Results, finish, options, row
from prefect_ft.decide.classify import builtin_catalogue

SHORT_MB = 50
DENSE_MB = 50
WORDY_MB = 5
MEASURED = """
import json, resource, sys, time
from prefect_ft.cli.log_files import read_log
from prefect_ft.decide.classify import builtin_catalogue, judge
catalogue = builtin_catalogue()
began = time.perf_counter()
verdict = judge([read_log(sys.argv[1], catalogue)])
elapsed = time.perf_counter() - began
peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([elapsed, peak_mb, verdict.failure_class]))
"""


def write_healthy_log(path: Path, megabytes: int) -> None:
    """Write the log of a run that is well: steps, bars, warnings, and the word error where it means nothing."""
    chance = random.Random(7)
    with path.open("w", encoding="utf-8") as stream:
        step = written = 0
        while written < megabytes * 10**6:
            lines = [_line(chance, step + number) for number in range(2000)]
            step += len(lines)
            written += stream.write("".join(lines))


def _line(chance: random.Random, step: int) -> str:
    hour, minute, second = step // 3600 % 24, step // 60 % 60, step % 60
    clock = f"2026-11-{1 + step // 86400 % 28:02d} {hour:02d}:{minute:02d}:{second:02d}"
    loss, share, kind = chance.random(), chance.random(), chance.random()
    if kind < 0.6:
        figures = f"loss={loss:.4f} grad_norm={share:.3f} lr=3.0e-04 tokens/s={9000 + step % 900}"
        said = f"INFO trainer.py:188 step {step // 8} {figures} error_rate={share:.3f}"
        return f"[rank{step % 8}]: {clock},{step % 1000:03d} {said}\n"
    if kind < 0.85:
        bar = f"{step % 100}%|#####     | {step}/900000 [01:12<3:04:05, {9 * share:.2f}it/s, loss={loss:.3f}]"
        return f"\rEpoch 3:  {bar}"
    if kind < 0.95:
        return f"\n{{'loss': {loss:.4f}, 'mean_absolute_error': {share:.3f}, 'epoch': {step / 1000:.2f}}}\n"
    if kind < 0.99:
        return f"{clock} INFO data.py:41 shard {step} read, 0 errors, 0 failed, retried 0\n"
    return (
        "/opt/conda/lib/python3.11/site-packages/torch/nn/modules/conv.py:456: UserWarning: plan not cached\n"
    )


def write_dense_log(path: Path, megabytes: int) -> None:
    """Write a log in which every line is a failure's: the watchdogs of eight ranks, a kernel's assertions."""
    with path.open("w", encoding="utf-8") as stream:
        number = written = 0
        while written < megabytes * 10**6:
            written += stream.write("".join(map(_failure, range(number, number + 2000))))
            number += 2000


def _failure(number: int) -> str:
    if number % 2:
        place = f"block: [{number % 97},0,0], thread: [{number % 1024},0,0]"
        return (
            f"../aten/src/ATen/native/cuda/Loss.cu:250: {place} Assertion `t >= 0 && t < n_classes` failed.\n"
        )
    rank = number % 8
    work = f"WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=262144, Timeout(ms)=600000)"
    said = f"Watchdog caught collective operation timeout: {work} ran for {600000 + rank} milliseconds"
    return f"[rank{rank}]:[E114 21:10:33.{number:09d} ProcessGroupNCCL.cpp:629] [Rank {rank}] {said}\n"


def write_wordy_log(path: Path, megabytes: int) -> None:
    """Write a log in which every line is a failure's and no two are alike: the catalogue's own examples."""
    chance = random.Random(7)
    said = [each.example for each in builtin_catalogue() if each.failure_class == "network"]
    words = [word for example in said for word in example.split() if word.isalpha()]
    with path.open("w", encoding="utf-8") as stream:
        written = 0
        while written < megabytes * 10**6:
            tail = " ".join(chance.choices(words, k=3))
            written += stream.write(f"2026-11-21 10:00:00,000 ERROR {chance.choice(said)} {tail}\n")


def throughput(path: Path, expected: str = "none") -> tuple[float, float]:
    """Read a log in a process of its own; return megabytes a second and the peak of its memory in MB."""
    output = subprocess.run(
        [sys.executable, "-c", MEASURED, path], capture_output=True, check=True, text=True
    ).stdout
    elapsed_s, peak_mb, failure_class = json.loads(output)
    assert failure_class == expected, failure_class
    return path.stat().st_size / elapsed_s / 1e6, peak_mb


def command_ms(path: Path) -> float:
    """Run the command on a log; return its wall time from start to end."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "prefect_ft.cli", "classify", path], check=True, stdout=subprocess.DEVNULL
    )
    return (time.perf_counter() - began) * 1000


def main() -> None:
    """Write both logs, read them, and take them away again."""
    arguments = options("What reading a log costs.", [("--megabytes", {"type": int, "default": 1000})])
    megabytes, repeats = (100, 3) if arguments.quick else (arguments.megabytes, 5)
    with tempfile.TemporaryDirectory(prefix="pft-classify-") as name:
        long, short, dense, wordy = (
            Path(name, f"{each}.log") for each in ("long", "short", "dense", "wordy")
        )
        write_healthy_log(long, megabytes)
        write_healthy_log(short, SHORT_MB)
        write_dense_log(dense, DENSE_MB)
        write_wordy_log(wordy, WORDY_MB)
        os.sync()
        speeds, peaks = zip(*(throughput(long) for _ in range(repeats)), strict=True)
        dense_speeds = [throughput(dense, "data")[0] for _ in range(repeats)]
        wordy_speeds = [throughput(wordy, "network")[0] for _ in range(repeats)]
        commands = [command_ms(short) for _ in range(repeats + 1)][1:]
    results = Results(
        rows=[
            row(OURS, "healthy log", speeds, unit="MB/s"),
            row(OURS, "healthy log, peak memory", peaks, unit="MB"),
            row(OURS, "dense", dense_speeds, unit="MB/s"),
            row(OURS, "dense, in other words each time", wordy_speeds, unit="MB/s"),
            row(OURS, f"command on {SHORT_MB} MB", commands),
        ],
        notes=[
            f"a healthy log of {megabytes} MB that the benchmark writes itself, in the page cache, one core"
        ],
    )
    finish(results, arguments)


if __name__ == "__main__":
    main()
