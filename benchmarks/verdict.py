"""What it costs to find out why an attempt of many ranks ended: seconds of CPU time, after the last rank's end.

Each rank has printed steps. One has failed of its own exception; the others have either been ended, or have
all failed of the lost connection before that.

    python -m benchmarks.verdict [--json FILE] [--quick] [--no-peers]
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.harness import OURS, Results, Row, finish, options, row
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.events import Exited, Output, read_event
from prefect_ft.supervisor.incidents import incident_of

SIZES = ((256, 2000), (1024, 2000), (4096, 100))
"""Ranks, and the lines that each has printed."""

RAISED = 'Traceback (most recent call last):\n  File "/a/train.py", line 3, in <module>\n    step()\n'
CAUSE = f"{RAISED}KeyError: 'label_17'\n"
FOLLOWS = (
    f"{RAISED}RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:26851\n"
)


def take(attempt: Attempt, ev: str, **fields: Any) -> None:
    """Tell an attempt of an event."""
    event = read_event({"ev": ev, "token": [1, 0, 1], **fields})
    assert isinstance(event, Output | Exited)
    attempt.take(0, event)


def ended(ranks: int, lines: int, *, all_fail: bool) -> Attempt:
    """Return an attempt that has ended."""
    attempt = Attempt(1, dict.fromkeys(range(ranks), 0))
    steps = "".join(f"step {number} loss 0.{number} time 10 ms\n" for number in range(lines))
    for rank in range(ranks):
        last = CAUSE if rank == 0 else FOLLOWS if all_fail else ""
        take(attempt, "output", rank=rank, offset=0, text=steps + last)
        how = {"code": 1, "signal": None} if last else {"code": None, "signal": 15}
        take(attempt, "exited", rank=rank, t_ns=0, oom=False, ends=False, **how)
        attempt.ending = True
    return attempt


def measure(repeats: int) -> list[Row]:
    """Measure each size, with one failed rank and with all."""
    rows = []
    for ranks, lines in SIZES:
        for all_fail in (False, True):
            taken_s = []
            for _ in range(repeats):
                attempt = ended(ranks, lines, all_fail=all_fail)
                began_s = time.process_time()
                assert incident_of(attempt, 0.0).failure_class == "user_code"
                taken_s.append(time.process_time() - began_s)
            case = f"{'all ranks fail' if all_fail else 'one rank fails'}, {lines} lines each"
            rows.append(row(OURS, case, taken_s, unit="s", ranks=ranks))
    return rows


def main() -> None:
    """Measure every size."""
    arguments = options("What a verdict on many ranks costs.")
    finish(Results(rows=measure(1 if arguments.quick else 5), notes=["seconds of CPU time"]), arguments)


if __name__ == "__main__":
    main()
