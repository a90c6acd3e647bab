"""What the store of in-process restarts takes, by the number of ranks, and a restart of many ranks on one machine.

The load: one process that serves, and one that plays all ranks (two connections each) through restarts: a fault of
one, the alert to all, the barrier of all. The store's processor time for each is fitted by a line, which says what
10,000 ranks would take. The restart: real ranks that wait, one raises.

    python -m benchmarks.inprocess_scale [--json FILE] [--quick]
"""

from __future__ import annotations

import selectors
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from benchmarks.harness import OURS, Results, finish, options, row
from benchmarks.inprocess import restarts_ms, start_ranks
from prefect_ft.inprocess import server
from prefect_ft.inprocess.client import Address, Connection

TARGET_RANKS = 10_000
SCRIPT = """
import os, time, logging
from prefect_ft.inprocess import CallWrapper, Wrapper
logging.disable()
last, events = int(os.environ["RESTARTS"]), open(os.environ["EVENTS"] + os.environ["RANK"], "w", buffering=1)

def note(what, iteration):
    events.write(f"{what} {iteration} {time.monotonic():.7f}\\n")

def train(call: CallWrapper):
    note("enter", call.iteration)
    if call.iteration >= last:
        return
    call.store().barrier("in", call.world_size)
    if os.environ["RANK"] == "1":
        time.sleep(0.3)
        note("fail", call.iteration)
        raise RuntimeError("boom")
    while True:
        time.sleep(30)

Wrapper(max_restarts_without_progress=None, hard_timeout=None)(train)()
"""


class Crowd:
    """The connections of ranks that one process plays, to a store in another."""

    def __init__(self, ranks: int) -> None:
        listening = server.listener("127.0.0.1", 0, 30.0)
        address = Address("127.0.0.1", listening.getsockname()[1], "", 30.0, 0)
        self._store = server.start(listening, 0)
        self._size, self._iteration = ranks, 0
        self._seats = [Connection(address, 30.0) for _ in range(ranks)]
        self._alerts = [Connection(address, 30.0) for _ in range(ranks)]
        for rank, alert in enumerate(self._alerts):
            alert.listen(rank)
        self._enter()

    def restart(self, times: int) -> tuple[float, float]:
        """Return the milliseconds that one restart took, and those that the store computed for it."""
        cpu_s, began_s = self._store_cpu_s(), time.monotonic()
        for _ in range(times):
            fault = {"op": "fault", "rank": 0, "kind": "exception", "text": "boom"}
            self._seats[0].send(**fault, iteration=self._iteration)
            _hear(self._alerts[1:], Connection.receive_alert)  # who has failed is not told
            self._iteration += 1
            self._enter()
        took_s, computed_s = time.monotonic() - began_s, self._store_cpu_s() - cpu_s
        return 1000 * took_s / times, 1000 * computed_s / times

    def _enter(self) -> None:
        entry = {"op": "enter", "size": self._size, "iteration": self._iteration, "step": 1, "without": []}
        for rank, seat in enumerate(self._seats):
            seat.send(**entry, rank=rank, barrier_s=60)
        _hear(self._seats, Connection.receive)

    def _store_cpu_s(self) -> float:
        return int(Path(f"/proc/{self._store.pid}/schedstat").read_text().split()[0]) / 1e9

    def close(self) -> None:
        """Leave; the store ends with that."""
        for connection in (*self._seats, *self._alerts):
            connection.close()
        self._store.wait()


def _hear(connections: list[Connection], receive: Callable[[Connection], object]) -> None:
    """Wait until each has been told something."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        while selector.get_map():
            for key, _ in selector.select():
                receive(key.data)
                selector.unregister(key.fileobj)


def load(sizes: tuple[int, ...], rounds: int) -> Results:
    """Measure the store by itself, and say what that means for many ranks."""
    results, medians = Results(), []
    for size in sizes:
        with closing(Crowd(size)) as crowd:
            times = [crowd.restart(max(2, 1000 // size)) for _ in range(rounds)]
        results.rows.append(row(OURS, "restart, played ranks", [took for took, _ in times], ranks=size))
        results.rows.append(row(OURS, "store's processor time", [used for _, used in times], ranks=size))
        medians.append(results.rows[-1].median)
    slope_ms, base_ms = statistics.linear_regression(sizes, medians)
    told = f"store's processor time for a restart: {base_ms:.2f} ms + {1000 * slope_ms:.1f} us a rank"
    results.notes.append(f"{told}; {TARGET_RANKS} ranks: {base_ms + slope_ms * TARGET_RANKS:.0f} ms")
    return results


def real_ranks_ms(ranks: int, restarts: int) -> list[float]:
    """Have one of real ranks raise; return the milliseconds until the last was in the function again."""
    with tempfile.TemporaryDirectory(prefix="pft-bench-") as name:
        env = {"RESTARTS": str(restarts), "EVENTS": f"{name}/"}
        processes = start_ranks(sys.executable, ["-S", "-c", SCRIPT], ranks, env)
        try:
            for process in processes:
                process.wait(timeout=300)
        finally:
            for process in processes:
                process.kill()
        return restarts_ms(Path(name), ranks, active=ranks)


def main() -> None:
    """Measure the store by itself, then restarts of real ranks."""
    arguments = options(__doc__.splitlines()[0] if __doc__ else "")
    results = load((64, 256, 1024, 4096), 3 if arguments.quick else 9)
    for ranks in (2, 8, 64):
        times = real_ranks_ms(ranks, 5 if arguments.quick else 20)
        results.rows.append(row(OURS, "raise→entered, asleep", times, ranks=ranks))
    finish(results, arguments)


if __name__ == "__main__":
    main()
