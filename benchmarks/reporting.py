"""What showing a run in Prefect adds to a restart: the same crashes with nothing shown, shown, and with an API of 10 s.

Each is the whole way of `benchmarks.restart`, ranks started cold, in turn. Attempts work for some seconds before
they crash: what is shown of one restart is shown then, and not while the next one goes on.

    python -m benchmarks.reporting [--json FILE] [--quick]
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.harness import OURS, Results, finish, options, row
from benchmarks.restart import CASE, Course, cold, measure

SLOW_S, WORK_S = 10.0, 3.0
RANKS = 2
CALLS = ("name_state", "log", "event", "put_artifact", "end_orphaned_tasks", "is_cancelled")


@contextmanager
def nothing_shown() -> Iterator[None]:
    """Leave the reporter out."""
    with patch("prefect_ft.flows.reporting", lambda *_: nullcontext()):
        yield


@contextmanager
def slow_api() -> Iterator[None]:
    """Have each call of the reporter take so long; what is left at the end is not waited for."""
    from prefect_ft.prefect_edge.reporting.api import OpenApi

    def slowed(call: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*arguments: Any) -> Any:
            time.sleep(SLOW_S)
            return call(*arguments)

        return wait

    with ExitStack() as stack:
        stack.enter_context(patch("prefect_ft.prefect_edge.reporting.reporter.DRAIN_IDLE_S", 0.0))
        for name in CALLS:
            stack.enter_context(patch.object(OpenApi, name, slowed(getattr(OpenApi, name))))
        yield


SETTINGS: dict[str, Callable[[], Any]] = {
    "nothing shown": nothing_shown,
    "shown": nullcontext,
    "API of 10 s": slow_api,
}


def main() -> None:
    """Measure the settings in turn, some rounds of some crashes each."""
    arguments = options("What showing a run in Prefect adds to a restart.")
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
    rounds, crashes = (2, 3) if arguments.quick else (6, 5)
    values: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, setting in SETTINGS.items():
            with setting():
                values[name] += measure(cold, Path(sys.executable), Course(RANKS, crashes, WORK_S))
    results = Results([row(OURS, CASE, values[name], ranks=RANKS, settings=name) for name in SETTINGS])
    without = statistics.median(values["nothing shown"])
    for name in ("shown", "API of 10 s"):
        added = statistics.median(values[name]) - without
        results.notes.append(f"{name}: {added:+.2f} ms at the median")
    finish(results, arguments)


if __name__ == "__main__":
    main()
