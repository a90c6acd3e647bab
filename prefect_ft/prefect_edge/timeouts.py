"""The timeouts of the flow and the task around a run, where Prefect itself cannot interrupt a wait.

Prefect raises an error between two instructions of a thread, or where an asynchronous flow awaits something: a
thread that waits for its ranks reaches neither.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prefect.context import FlowRunContext, TaskRunContext

from prefect_ft.clock import epoch_now
from prefect_ft.supervisor import TIMED_OUT

LATER_S = 0.5
"""How long to wait for Prefect's own error first."""


@contextmanager
def heeding_timeouts(ask: Callable[[str], None]) -> Iterator[None]:
    """Call `ask` with the source of the stop once a flow or task of this context has timed out."""
    ends = _ends_s()
    if not ends:
        yield
        return
    timer = threading.Timer(max(0.0, min(ends) + LATER_S - epoch_now()), ask, (TIMED_OUT,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _ends_s() -> list[float]:
    """Return when the flow and the task of this context time out, in seconds since the epoch."""
    flow, task = FlowRunContext.get(), TaskRunContext.get()
    ends = []
    if flow is not None and flow.flow is not None and flow.flow.timeout_seconds is not None:
        ends.append(flow.start_time.timestamp() + flow.flow.timeout_seconds)
    if task is not None and task.task.timeout_seconds is not None:
        ends.append(task.start_time.timestamp() + task.task.timeout_seconds)
    return ends
