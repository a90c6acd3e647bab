"""A rank raises until all ranks have entered the wrapped function again: ours, and nvidia-resiliency-ext.

Both sides run the same function with the same interpreter, in turn; the peer at its defaults and at the best
settings that we know. `adapter` is the peer's function with one changed import, on our engine. The payload
`idle` waits in sleeps of 5 ms, `busy` is a Python loop, `all_reduce` is blocked in a collective of gloo (not
the peer: it waits for the group's time-out there). `SIGKILL, a spare`: rank 1 kills itself, one rank more
than are to run has been started, and the others sleep. The rows `bare` are what the machine allows:
benchmarks/inprocess_floor.py. `nccl`, which has to be asked for, needs a GPU: all ranks share it, and wait in a
collective of NCCL.

    python -m benchmarks.inprocess [--json FILE] [--quick] [--peers DIRECTORY] [--ranks N …]
        [--payloads NAME …] [--first]
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import venv
from argparse import Namespace
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks import inprocess_floor
from benchmarks.harness import OURS, Results, Row, finish, options, row

PEER = "nvidia-resiliency-ext"
REQUIREMENTS = ("torch==2.13.0", f"{PEER}==0.4.1", "numpy")
SETTINGS = {
    (OURS, "default"): "ours",
    (OURS, "adapter"): "adapter",
    ("bare", "floor"): "bare",
    (PEER, "default"): "default",
    (PEER, "tuned"): "tuned",
}
CASES = {
    "idle": "raise→entered, idle",
    "busy": "raise→entered, busy",
    "all_reduce": "raise→entered, all_reduce",
    "spare": "SIGKILL, a spare→entered",
}
ON_A_GPU = {"nccl": "raise→entered, all_reduce of NCCL"}
EXTRA: list[tuple[str, dict[str, Any]]] = [
    (
        "--peers",
        {"type": Path, "default": Path("build/peers/nvrx"), "help": "the environment that has the peer"},
    ),
    ("--ranks", {"type": int, "nargs": "+", "default": [2, 4, 8], "help": "how many run"}),
    (
        "--first",
        {"action": "store_true", "help": "before all other work of the machine, but for busy; needs root"},
    ),
    (
        "--payloads",
        {"nargs": "+", "default": list(CASES), "choices": CASES | ON_A_GPU, "help": "what they do"},
    ),
]
MORE = 5
Sides = list[tuple[str, str]]
SCRIPT = """
import datetime, gc, json, logging, os, sys, time, warnings
warnings.filterwarnings("ignore")
import torch, torch.distributed as dist

torch.set_num_threads(1)
if os.environ["FIRST"]:
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
logging.disable()
side, payload, last = os.environ["SIDE"], os.environ["PAYLOAD"], int(os.environ["RESTARTS"])
active = int(os.environ["ACTIVE"])
ME, events = int(os.environ["RANK"]), open(os.environ["EVENTS"] + os.environ["RANK"], "w", buffering=1)

if payload == "nccl":
    os.environ.update(NCCL_HOSTID=f"host-{ME}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    if side in ("default", "tuned"):
        peers = dist.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 2, int(os.environ["WORLD_SIZE"]), ME == 0)

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
    if payload == "nccl":
        theirs = side in ("default", "tuned")
        dist.init_process_group(
            "nccl",
            store=dist.PrefixStore(str(call.iteration), peers) if theirs else call.torch_store(),
            rank=call.state.active_rank if theirs else call.rank,
            world_size=call.state.active_world_size if theirs else call.world_size,
            timeout=datetime.timedelta(seconds=50), device_id=torch.device("cuda", 0))
        total = torch.ones(1, device="cuda")
        dist.all_reduce(total)
        total.item()
    if call.iteration >= last:
        return
    fails_s = time.monotonic() + 0.3 if ME == 1 else float("inf")
    while time.monotonic() < fails_s:
        if payload in ("idle", "spare"):
            time.sleep(0.005)
        elif payload in ("all_reduce", "nccl") and ME != 1:
            dist.all_reduce(total)
            total.tolist()
    note("fail", call.iteration)
    if payload == "spare":
        os.kill(os.getpid(), 9)
    raise RuntimeError("boom")

if side == "ours":
    from prefect_ft.inprocess import CallWrapper, Wrapper
    from prefect_ft.inprocess.rank_assignment import compose, fill_gaps, max_active

    @Wrapper(
        max_restarts_without_progress=None,
        rank_assignment=compose(fill_gaps, max_active(active)))
    def wrapped(call: CallWrapper):
        train(call)
else:
    from datetime import timedelta
    if side == "adapter":
        from prefect_ft.compat import nvrx as inprocess
    else:
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
            inprocess.rank_assignment.MaxActiveWorldSize(active), inprocess.rank_assignment.ShiftRanks()),
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
    """Return the interpreter of an environment that has the peer; made if it is not there."""
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
    return str(python)


def measure(python: str, settings: dict[str, str], ranks: int, restarts: int) -> list[float]:
    """Have rank 1 fail some times; return the milliseconds until the last that is to run was in the function again.

    `settings` are SIDE, PAYLOAD and FIRST: whether ranks that have begun take the processors from all other work. Who
    kills itself fails once.
    """
    with_spare = settings["PAYLOAD"] == "spare"
    started, times = ranks + with_spare, 1 if with_spare else restarts
    with tempfile.TemporaryDirectory(prefix="pft-bench-") as name:
        told = {**settings, "RESTARTS": str(times), "ACTIVE": str(ranks)}
        script = inprocess_floor.SCRIPT if settings["SIDE"] == "bare" else SCRIPT
        processes = start_ranks(python, ["-c", script], started, {**told, "EVENTS": f"{name}/"})
        try:
            for process in processes:
                process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            pass  # who did not come back has no row
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return restarts_ms(Path(name), started, active=ranks)


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


def restarts_ms(directory: Path, ranks: int, active: int) -> list[float]:
    """Return, for each failure that ranks noted, the milliseconds until `active` were in the function again."""
    failed: dict[int, float] = {}
    entered: dict[int, list[float]] = defaultdict(list)
    for rank in range(ranks):
        for line in (directory / str(rank)).read_text().splitlines():
            what, iteration, at = line.split()
            if what == "fail":
                failed[int(iteration)] = float(at)
            else:
                entered[int(iteration)].append(float(at))
    times = {n: entered[n + 1] for n in failed if len(entered[n + 1]) == active}
    return [1000 * (max(times[n]) - failed[n]) for n in times]


def steps_ratio(python: str, rounds: int, steps: int) -> tuple[list[float], list[float]]:
    """Return the seconds that steps of 1 ms take, wrapped and bare, in turn."""
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


def sides_of(payload: str, with_peer: bool) -> Sides:
    """Return who is measured: the peer where it does not wait for a time-out, the floor where there is one."""
    has = {
        OURS: True,
        PEER: with_peer and payload != "all_reduce",
        "bare": payload in ("idle", "all_reduce"),
    }
    own_api = payload in ("all_reduce", "nccl")  # by the call's own store, which theirs does not have
    return [side for side in SETTINGS if has[side[0]] and not (own_api and side[1] == "adapter")]


def rows_of(python: str, payload: str, ranks: int, sides: Sides, arguments: Namespace) -> list[Row]:
    """Measure one payload on all sides, in turn.

    To start the interpreters takes longer than the restarts: of those that need no seconds for one there are more.
    """
    rounds, restarts = (1, 3) if arguments.quick else (3, 5)
    first = "before all else" if arguments.first and payload != "busy" else ""
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for side in sides:
            settings = {"SIDE": SETTINGS[side], "PAYLOAD": payload, "FIRST": first}
            times = restarts if side == (PEER, "default") else MORE * restarts
            values[side] += measure(python, settings, ranks, times)
    case = (CASES | ON_A_GPU)[payload] + (first and f", {first}")
    return [row(side[0], case, values[side], settings=side[1], ranks=ranks) for side in sides if values[side]]


def main() -> None:
    """Measure all sides in turn, some rounds of some restarts each."""
    arguments = options(__doc__.splitlines()[0] if __doc__ else "", EXTRA)
    python = peer_python(arguments.peers)
    results = Results()
    for ranks in arguments.ranks:
        for payload in arguments.payloads:
            sides = sides_of(payload, not arguments.no_peers)
            results.rows += rows_of(python, payload, ranks, sides, arguments)
    if arguments.payloads == list(CASES):
        wrapped, bare = steps_ratio(python, 3 if arguments.quick else 7, 1000)
        results.notes.append(f"1000 steps of 1 ms, bare over wrapped: {min(bare) / min(wrapped):.4f}")
    finish(results, arguments)


if __name__ == "__main__":
    main()
