"""Shows a run in Prefect: states, log lines, events, a table, a page, progress, all from the journal.

One thread does all of it, in order; recovery never waits for it. docs/decisions/0019 says why.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.logging import get_run_logger

from prefect_ft.observe import Observer, observed_by
from prefect_ft.plaintext import as_line
from prefect_ft.prefect_edge.reporting.api import FlowRunApi
from prefect_ft.prefect_edge.reporting.reporter import Reporter
from prefect_ft.prefect_edge.reporting.wishes import DIED
from prefect_ft.run import Run

__all__ = ["DIED", "ENDED", "report_end", "reporting"]

ENDED = "prefect-ft.ended"
"""The event of a flow run that has ended."""

_logger = logging.getLogger(__name__)


@contextmanager
def reporting(
    run: Run,
    on_cancel: Callable[[str], None],
    passed_on: Callable[[Observer], AbstractContextManager[None]] = observed_by,
) -> Iterator[None]:
    """Show the run of this context's flow run while entered; do nothing outside of a flow run.

    `passed_on(observer)` tells an observer what happens while entered: in this context, or in another thread.

    `on_cancel` is called, with who asked, once the flow run is to be cancelled: where no worker runs it
    nothing else would report that.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow is None:
        yield
        return
    if context.flow_run.deployment_id is None:
        directory = shlex.quote(str(run.model_dir))
        get_run_logger().info(
            as_line(f"If this process dies, training goes on: prefect-ft resume {directory}")
        )
    api = FlowRunApi(context.flow_run.id, context.flow_run.flow_id, context.flow.name)
    reporter = Reporter(run, api, on_cancel)
    try:
        with passed_on(reporter.take):
            yield
    finally:
        reporter.close()


def report_end() -> None:
    """Send an event that this context's flow run has ended; do nothing outside of a flow run.

    The events of its states wait for earlier ones, and are lost with them. The automation that acts on
    silence needs this one in any case.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow is None:
        return
    resource = {
        "prefect.resource.id": f"prefect.flow-run.{context.flow_run.id}",
        "prefect.resource.name": context.flow_run.name,
    }
    flow = {
        "prefect.resource.id": f"prefect.flow.{context.flow_run.flow_id}",
        "prefect.resource.role": "flow",
        "prefect.resource.name": context.flow.name,
    }
    try:
        emit_event(event=ENDED, resource=resource, related=[flow])
    except Exception:
        _logger.debug("could not be shown in Prefect", exc_info=True)
