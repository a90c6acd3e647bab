"""Real processes that run a function wrapped for in-process restart, and what became of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ports import free_port

ROOT = Path(__file__).parents[2]

PRELUDE = """
import json, os, signal, sys, threading, time
from prefect_ft.inprocess import CallWrapper, ExcludedError, HealthCheckError, RestartAbort, Wrapper
from prefect_ft.inprocess.rank_assignment import *
ME = int(os.environ["RANK"])
EVENTS = open(os.path.join(os.environ["EVENTS"], str(ME)), "a", buffering=1)

def note(what, **fields):
    EVENTS.write(json.dumps({"what": what, "t": time.monotonic(), **fields}) + "\\n")

def entered(call):
    fault = call.state.fault
    note("enter", place=[call.iteration, call.rank, call.world_size, fault and fault.kind, fault and fault.rank])

def all_are_in(call, name="in"):
    with_store = call.store()
    with_store.barrier(name, call.world_size)
    with_store.close()

def wait():
    while True:
        time.sleep(30)

def go(wrapper, function):
    try:
        value = wrapper(function)()
    except BaseException as exc:
        note("end", how=type(exc).__name__, text=str(exc))
        raise
    note("end", how="returned", value=value)
"""


@dataclass
class Outcome:
    """What became of the ranks, by their first numbers."""

    codes: list[int]
    events: list[list[dict[str, Any]]]
    output: str
    wall_s: float = 0.0

    def places(self, rank: int) -> list[list[Any]]:
        """Each entry: iteration, rank, world size, kind and rank of the fault that led there."""
        return [event["place"] for event in self.events[rank] if event["what"] == "enter"]

    def noted(self, what: str) -> list[list[Any]]:
        """By rank, the fields of what it noted, without the time."""
        return [
            [
                {name: value for name, value in event.items() if name not in ("what", "t")}
                for event in events
                if event["what"] == what
            ]
            for events in self.events
        ]

    def ends(self) -> list[str | None]:
        """How the wrapped call ended in each rank: `returned`, the exception's class; None: not at all."""
        return [found[0]["how"] if found else None for found in self.noted("end")]

    def restart_ms(self) -> list[float]:
        """From each `fail` until the last rank entered the next iteration."""
        failed = {e["iteration"]: e["t"] for events in self.events for e in events if e["what"] == "fail"}
        entered: dict[int, float] = {}
        for events in self.events:
            for e in events:
                if e["what"] == "enter":
                    entered[e["place"][0]] = max(e["t"], entered.get(e["place"][0], 0.0))
        return [1000 * (entered[number + 1] - t) for number, t in failed.items() if number + 1 in entered]


@dataclass
class Ranks:
    """Ranks of one script, started; `wait` for them."""

    directory: Path
    size: int
    body: str
    python: str = sys.executable
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        script = self.directory / "script.py"
        script.write_text(PRELUDE + self.body)
        port = free_port(2)
        with open(self.directory / "output", "wb") as output:
            self.processes = [
                subprocess.Popen(
                    [self.python, str(script)],
                    env={
                        **os.environ,
                        "PYTHONPATH": str(ROOT),
                        "RANK": str(rank),
                        "WORLD_SIZE": str(self.size),
                        "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": str(port),
                        "EVENTS": str(self.directory),
                        **self.env,
                    },
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
                for rank in range(self.size)
            ]

    def wait(self, timeout_s: float = 60.0) -> Outcome:
        """Wait for all; kills what has not ended in time, and says so in the codes."""
        began_s = time.monotonic()
        for process in self.processes:
            try:
                process.wait(max(0.0, began_s + timeout_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        paths = [self.directory / str(rank) for rank in range(self.size)]
        events = [
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
            for path in paths
        ]
        output = (self.directory / "output").read_text(errors="replace")
        return Outcome([p.returncode for p in self.processes], events, output, time.monotonic() - began_s)


def run(directory: Path, size: int, body: str, **options: Any) -> Outcome:
    """Start the ranks and wait for them."""
    return Ranks(directory, size, body, **options).wait()
