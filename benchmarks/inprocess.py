"""A rank raises until all ranks have entered the wrapped function again: ours, and nvidia-resiliency-ext.

Both sides run the same function with the same interpreter, in turn; the peer at its defaults and at the best
settings that we know. The payload `idle` waits in sleeps of 5 ms, `busy` is a Python loop, `all_reduce` is
blocked in a collective of gloo (ours alone: the peer waits for the group's time-out there).

    python -m benchmarks.inprocess [--json FILE] [--quick] [--peers DIRECTORY]
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import venv
from collections import defaultdict
from pathlib import Path

from benchmarks.harness import OURS, Results, finish, options, row

PEER = "nvidia-resiliency-ext"
REQUIREMENTS = ("torch==2.13.0", f"{PEER}==0.4.1", "numpy")
SETTINGS = {(OURS, "default"): "ours", (PEER, "default"): "default", (PEER, "tuned"): "tuned"}
SCRIPT = """
import datetime, gc, json, logging, os, sys, time, warnings
warnings.filterwarnings("ignore")
import torch, torch.distributed as dist

torch.set_num_threads(1)
logging.disable()
side, payload, last = os.environ["SIDE"], os.environ["PAYLOAD"], int(os.environ["RESTARTS"])
ME, events = int(os.environ["RANK"]), open(os.environ["EVENTS"] + os.environ["RANK"], "w", buffering=1)

def note(what, iteration):
    events.write(f"{what} {iteration} {time.monotonic():.7f}\\n")

def train(call):
    note("enter", call.iteration)
    if payload == "all_reduce":
        dist.init_process_group(
            "gloo", store=call.torch_store(), rank=call.rank, world_size=call.world_size,
            timeout=datetime.timedelta(seconds=50))
        total = torch.ones(1)
        dist.all_reduce(total)
    if call.iteration >= last:
        return
    fails_s = time.monotonic() + 0.3 if ME == 1 else float("inf")
    while time.monotonic() < fails_s:
        if payload == "idle":
            time.sleep(0.005)
        elif payload == "all_reduce" and ME != 1:
            dist.all_reduce(total)
    note("fail", call.iteration)
    raise RuntimeError("boom")

if side == "ours":
    from prefect_ft.inprocess import CallWrapper, Wrapper

    @Wrapper(max_restarts_without_progress=None)
    def wrapped(call: CallWrapper):
        train(call)
else:
    from datetime import timedelta
    import nvidia_resiliency_ext.inprocess as inprocess

    seconds = {}
    if side == "tuned":
        seconds = {"last_call_wait": 0, "monitor_thread_interval": 0.25, "monitor_process_interval": 0.02,
                   "heartbeat_interval": 0.1, "progress_watchdog_interval": 0.1}
        gc.collect()
        gc.freeze()

    @inprocess.Wrapper(
        store_kwargs={"timeout": timedelta(seconds=60)},
        rank_assignment=inprocess.Compose(
            inprocess.rank_assignment.ActivateAllRanks(), inprocess.rank_assignment.ShiftRanks()),
        **{name: timedelta(seconds=value) for name, value in seconds.items()})
    def wrapped(call: inprocess.CallWrapper = None):
        train(call)

wrapped()
os._exit(0)
"""
STEPS = """
import sys, time
from prefect_ft.inprocess import CallWrapper, Wrapper

def train(call: CallWrapper):
    began_s = time.perf_counter()
    for step in range(int(sys.argv[2])):
        until_s = time.perf_counter() + 0.001
        while time.perf_counter() < until_s:
            pass
        call.ping(step)
    print(time.perf_counter() - began_s)

Wrapper(enabled=sys.argv[1] == "wrapped")(train)()
"""


def peer_python(directory: Path) -> str:
    """Give the interpreter of an environment that has the peer; made if it is not there."""
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
    return str(python)


def measure(python: str, side: str, payload: str, ranks: int, restarts: int) -> list[float]:
    """Have rank 1 raise some times; give the milliseconds until the last rank was in the function again."""
    with tempfile.TemporaryDirectory(prefix="pft-bench-") as name:
        processes = start_ranks(python, ["-c", SCRIPT], ranks, _environment(name, side, payload, restarts))
        try:
            for process in processes:
                process.wait(timeout=120)
        finally:
            for process in processes:
                process.kill()
        return restarts_ms(Path(name), ranks)


def _environment(directory: str, side: str, payload: str, restarts: int) -> dict[str, str]:
    return {"SIDE": side, "PAYLOAD": payload, "RESTARTS": str(restarts), "EVENTS": f"{directory}/"}


def start_ranks(
    python: str, words: list[str], ranks: int, env: dict[str, str]
) -> list[subprocess.Popen[bytes]]:
    """Start the ranks of one script, with a rendezvous of their own."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(ranks)}
    path = {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [python, *words],
            env={**os.environ, **env, **place, **path, "RANK": str(rank)},
            stderr=subprocess.DEVNULL,
        )
        for rank in range(ranks)
    ]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def restarts_ms(directory: Path, ranks: int) -> list[float]:
    """Give, for each failure that ranks noted, the milliseconds until the last was in the function again."""
    failed: dict[int, float] = {}
    entered: dict[int, list[float]] = defaultdict(list)
    for rank in range(ranks):
        for line in (directory / str(rank)).read_text().splitlines():
            what, iteration, at = line.split()
            if what == "fail":
                failed[int(iteration)] = float(at)
            else:
                entered[int(iteration)].append(float(at))
    times = {n: entered[n + 1] for n in failed if len(entered[n + 1]) == ranks}
    return [1000 * (max(times[n]) - failed[n]) for n in times]


def steps_ratio(python: str, rounds: int, steps: int) -> tuple[list[float], list[float]]:
    """Give the seconds that steps of 1 ms take, wrapped and bare, in turn."""
    seconds: dict[str, list[float]] = {"wrapped": [], "bare": []}
    env = {
        "MASTER_ADDR": "127.0.0.1",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    for _ in range(rounds):
        for side, values in seconds.items():
            told = subprocess.run(
                [python, "-c", STEPS, side, str(steps)],
                env={**os.environ, **env, "MASTER_PORT": str(_free_port())},
                check=True, stdout=subprocess.PIPE,
            )  # fmt: skip
            values.append(float(told.stdout))
    return seconds["wrapped"], seconds["bare"]


def main() -> None:
    """Measure all sides in turn, some rounds of some restarts each."""
    extra = {"type": Path, "default": Path("build/peers/nvrx"), "help": "the environment that has the peer"}
    arguments = options(__doc__.splitlines()[0] if __doc__ else "", [("--peers", extra)])
    python = peer_python(arguments.peers)
    rounds, restarts = (1, 3) if arguments.quick else (3, 5)
    results = Results()
    for ranks in (2, 4):
        for payload in ("idle", "busy", "all_reduce"):
            sides = [
                s for s in SETTINGS if s[0] == OURS or not (arguments.no_peers or payload == "all_reduce")
            ]
            values: dict[tuple[str, str], list[float]] = defaultdict(list)
            for _ in range(rounds):
                for side in sides:
                    values[side] += measure(python, SETTINGS[side], payload, ranks, restarts)
            results.rows += [
                row(side[0], f"raise→entered, {payload}", values[side], settings=side[1], ranks=ranks)
                for side in sides
            ]
    wrapped, bare = steps_ratio(python, 3 if arguments.quick else 7, 1000)
    results.notes.append(f"1000 steps of 1 ms, bare over wrapped: {min(bare) / min(wrapped):.4f}")
    finish(results, arguments)


if __name__ == "__main__":
    main()
