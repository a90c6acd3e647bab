"""Ranks that are healthy but quiet, for real: agents sample them, and nobody is ever said to hang.

The kinds are those of the generated traces. Every limit is scaled down by configuration, HANG_S for 30 minutes.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from agents import PYTHON
from hanging import HANG_S, Make, fewer

NEARLY_S = 0.7 * HANG_S
LONG_S = 2.5 * HANG_S
LENIENT = {"compile": 20.0, "checkpoint": 20.0, "validate": 20.0}

SPIN = """
def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: pass

def work(seconds, prints=True):
    "Use now two processors and now none: on a busy machine that still is now more and now less."
    end, child = time.monotonic() + seconds, os.fork()
    while time.monotonic() < end:
        spin(0.5)
        time.sleep(0.5)
        if prints and child: print("works")
    os.waitpid(child, 0) if child else os._exit(0)

def wait_for(name):
    while not os.path.exists(name): time.sleep(0.05)

def did(name): open(name, "w").close()
"""

STOPPED = """
def stopped(pids, seconds):
    "Stop processes for a while, from a process that is none of the ranks'."
    if os.fork() == 0:
        for pid in pids: os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in pids: os.kill(pid, signal.SIGCONT)
        os._exit(0)
"""

OTHER_CLOCK = """
import ctypes, subprocess
assert ctypes.CDLL(None).unshare(0x80) == 0  # CLONE_NEWTIME: for children
with open("/proc/self/timens_offsets", "w") as offsets: offsets.write(f"boottime {SECONDS} 0")
code = "import time; from prefect_ft.heartbeat import beat\\n" \\
       "for n in range(25): beat(step=n, stage='train'); time.sleep(0.2)"
subprocess.run([sys.executable, "-S", "-c", code], check=True)
"""


DEVICES = (PYTHON, "-S", "-c", "import os; print('{\"0\": %d}' % (os.urandom(1)[0] % 80))")


@dataclass(frozen=True)
class Kind:
    """What the ranks do, what the job says of it, and how many others want the first processor."""

    code: str
    workers: int = 1
    fields: dict[str, Any] = field(default_factory=dict)
    crowd: int = 0


def one(code: str, crowd: int = 0, **fields: Any) -> Kind:
    return Kind(code, 1, fields, crowd)


def two(rank_0: str, rank_1: str, **fields: Any) -> Kind:
    lines = ["if rank == 0:", *_indented(rank_0), "else:", *_indented(rank_1)]
    return Kind("\n".join(lines), 2, fields)


def _indented(code: str) -> list[str]:
    return [f"    {line}" for line in code.splitlines()]


KINDS = {
    "long-compile": one(f"beat(stage='compile'); spin({LONG_S}); train()", stages=LENIENT),
    "long-compile-without-heartbeats": one(f"for _ in range(3): print('compiled'); spin({NEARLY_S})"),
    "long-checkpoint": one(
        f"train(); beat(stage='checkpoint'); time.sleep({LONG_S})\n"
        f"beat(stage='train'); time.sleep({NEARLY_S}); train(6)",
        stages=LENIENT,
    ),
    "others-wait-for-one-that-saves": two(
        f"train(); beat(stage='checkpoint'); time.sleep({LONG_S}); did('saved'); train(6)",
        "train(); wait_for('saved'); train(6)",
        stages=LENIENT,
    ),
    "long-validation-that-beats": one(
        f"train(); beat(stage='validate')\nfor _ in range(int(10 * {LONG_S})): beat(); time.sleep(0.1)\ntrain(6)"
    ),
    "long-validation-that-is-silent": one(
        f"train(); beat(stage='validate'); time.sleep({NEARLY_S}); train(6)"
    ),
    "slow-first-batch": one(f"beat(stage='load'); time.sleep({LONG_S}); train()", first_step_s=20.0),
    "slow-first-batch-before-the-first-beat": one(f"time.sleep({LONG_S}); train()", first_step_s=20.0),
    "garbage-collector": one(
        "import gc; heap = [[n] for n in range(10**6)]\n"
        f"for n in range(3): train(10 * n + 4); spin({NEARLY_S} - 0.5); gc.collect()"
    ),
    "bursts-of-io": one(
        f"for n in range(4):\n    open('data', 'wb').write(bytes(10**6)); time.sleep({NEARLY_S})"
    ),
    "sleeps-with-heartbeats": one(f"for _ in range(int(2 * {LONG_S})): beat(stage='train'); time.sleep(0.5)"),
    "one-waits-for-a-slow-one": two(
        f"train(); work({LONG_S}); did('done'); train(6)",
        "train(); wait_for('done'); train(6)",
    ),
    "one-waits-for-a-slow-one-without-heartbeats": two(
        f"work({1.5 * HANG_S}); did('done')", "wait_for('done')"
    ),
    "only-rank-0-beats": two(f"train(int(20 * {LONG_S})); did('done')", "wait_for('done')"),
    "a-load-that-changes-without-io": one(f"work({LONG_S}, prints=False)"),
    "busy-devices-without-io": one(f"spin({LONG_S})", device_command=DEVICES),
    "a-rank-that-ends-early": two("train()", f"train(int(20 * {LONG_S}))"),
    "steps-nearly-as-long-as-the-limit": one(
        f"for n in range(4): beat(step=n, stage='train'); spin({NEARLY_S})"
    ),
    "prints-now-and-then": one(f"for _ in range(4): time.sleep({NEARLY_S}); print('here')"),
    "a-clock-hours-ahead": one(OTHER_CLOCK.replace("SECONDS", "10**5")),
    "a-clock-hours-behind": one(
        OTHER_CLOCK.replace("SECONDS", "-int(time.clock_gettime(time.CLOCK_BOOTTIME)) // 2")
    ),
    "a-suspended-machine": two(
        f"stopped([os.getppid(), os.getpid()], {LONG_S}); train(20)",
        f"stopped([os.getppid(), os.getpid()], {LONG_S}); train(20)",
    ),
    "a-stopped-agent": two(
        f"train(); time.sleep({LONG_S}); train(6); did('done')",
        f"train(); stopped([os.getppid()], {LONG_S} + 1); wait_for('done'); train(6)",
    ),
    "an-overloaded-machine": one(f"os.sched_setaffinity(0, {{0}}); os.nice(19); spin({LONG_S})", crowd=8),
}


@contextmanager
def crowd(size: int) -> Iterator[None]:
    """So many processes that want the first processor, each in a session of its own: some kernels share by those."""
    code = "import os; os.sched_setaffinity(0, {0})\nwhile True: pass"
    others = [subprocess.Popen([PYTHON, "-S", "-c", code], start_new_session=True) for _ in range(size)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def assert_let_be(make: Make, name: str) -> None:
    kind = KINDS[name]
    if OTHER_CLOCK[:20] in kind.code and os.getuid():
        pytest.skip("needs root: only root gives processes a clock of their own")
    phase = make(SPIN + STOPPED + kind.code, workers=kind.workers, **kind.fields)
    with crowd(kind.crowd):
        decided = phase.run()
    assert phase.lines("hang") == []
    assert decided == ["completed: complete"]


@pytest.mark.parametrize("name", fewer(KINDS, "a-stopped-agent"))
def test_quiet_ranks_are_let_be(name: str, make_hanging: Make) -> None:
    assert_let_be(make_hanging, name)


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("again", range(4))
def test_quiet_ranks_are_let_be_every_time(name: str, again: int, make_hanging: Make) -> None:
    assert_let_be(make_hanging, name)
