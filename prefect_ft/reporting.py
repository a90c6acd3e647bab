"""Shows in Prefect what was decided: a line in the run's log, an event, the table `restart-ledger`.

All of it from a queue in a thread of its own: recovery never waits for the API, and an API that is down
or slow costs only what it would have shown.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any
from uuid import UUID

from prefect.artifacts import create_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import State, StateType
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.logging import get_run_logger
from prefect.states import Crashed

from prefect_ft.clock import utc_now
from prefect_ft.model import RESTARTS
from prefect_ft.observe import Decided, Fact, observed_by
from prefect_ft.run import Run

DRAIN_S = 10.0
"""How long the end of a run waits for what is still to be shown."""

ASK_S = 5.0
"""How often it is asked whether the flow run is to be cancelled, while nothing happens."""

ENDED = "prefect-ft.ended"
"""The event of a flow run that has come to its end."""

LEDGER_KEY = "restart-ledger"
LEDGER_ROWS = 500
"""The newest that the table holds; the journal holds all."""

_logger = logging.getLogger(__name__)


@contextmanager
def reporting(run: Run, on_cancel: Callable[[str], None]) -> Iterator[None]:
    """Show the decisions of the flow run of this context while entered; nothing outside of a flow run.

    `on_cancel` is called, with who asked, once the flow run is to be cancelled: where no worker runs it
    nobody else would tell.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        yield
        return
    flow_run_id = str(context.flow_run.id)
    reporter = _Reporter(run.run_id, flow_run_id, on_cancel)
    try:
        with observed_by(reporter.take):
            yield
    finally:
        reporter.close()


def report_end() -> None:
    """Say in an event that the flow run of this context has come to its end; nothing outside of a flow run.

    Its states' events wait for the ones before them, and are lost with them. The automation that acts on
    silence has to hear of the end all the same.
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


class _Reporter:
    """Takes facts at once and shows them when it can, in their order."""

    def __init__(self, run_id: str, flow_run_id: str, on_cancel: Callable[[str], None]) -> None:
        self._run_id, self._flow_run_id = run_id, flow_run_id
        self._on_cancel = on_cancel
        self._began = datetime.now(timezone.utc)
        self._log = get_run_logger()
        self._rows: list[dict[str, Any]] = []
        self._shown_rows = self._rows
        self._queue: queue.SimpleQueue[tuple[str, Decided] | None] = queue.SimpleQueue()
        # Prefect's calls find the flow run in the context of whoever makes them.
        work = contextvars.copy_context().run
        self._thread = threading.Thread(
            target=work, args=(self._work,), name="prefect-ft-reporter", daemon=True
        )
        self._thread.start()

    def take(self, fact: Fact) -> None:
        """Take a fact to show; returns at once."""
        if isinstance(fact, Decided):
            self._queue.put((utc_now(), fact))

    def close(self) -> None:
        """Wait, at most `DRAIN_S`, until everything is shown."""
        self._queue.put(None)
        self._thread.join(DRAIN_S)
        if self._thread.is_alive():
            _logger.warning(
                "the Prefect API is slow: some restarts are not shown there; the journal has them"
            )

    def _work(self) -> None:
        self._try(self._end_orphaned_tasks)
        while (item := self._next()) is not None:
            when, fact = item
            self._rows = [*self._rows, _row(when, fact)][-LEDGER_ROWS:]
            self._try(self._show_log, fact)
            self._try(self._show_event, fact)
            if self._queue.empty():  # else the next one shows this row as well
                self._try(self._show_ledger)
        if self._shown_rows is not self._rows:
            self._try(self._show_ledger)

    def _next(self) -> tuple[str, Decided] | None:
        """Give what is to be shown next, and ask about a cancellation while there is nothing."""
        while True:
            try:
                return self._queue.get(timeout=ASK_S)
            except queue.Empty:
                self._try(self._ask_whether_cancelled)

    def _ask_whether_cancelled(self) -> None:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(UUID(self._flow_run_id)).state
        if state is not None and (state.is_cancelling() or state.is_cancelled()):
            self._on_cancel("cancelled in Prefect")

    def _end_orphaned_tasks(self) -> None:
        """Mark the task runs of an earlier life, which nobody will ever end, as crashed."""
        flow_run = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(self._flow_run_id)]))
        state_type = TaskRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING])
        running = TaskRunFilter(state=TaskRunFilterState(type=state_type))
        with get_client(sync_client=True) as client:
            for task_run in client.read_task_runs(flow_run_filter=flow_run, task_run_filter=running):
                if task_run.start_time is not None and task_run.start_time < self._began:
                    state: State[Any] = Crashed(message="The orchestrator died; what it watched went on.")
                    client.set_task_run_state(task_run.id, state, force=True)

    def _try(self, show: Callable[..., None], *arguments: Any) -> None:
        try:
            show(*arguments)
        except Exception:
            _logger.debug("could not be shown in Prefect", exc_info=True)

    def _show_log(self, fact: Decided) -> None:
        incident, decision = fact.incident, fact.decision
        level = logging.INFO if decision.action == "complete" else logging.WARNING
        evidence = (
            f" cause={incident.evidence.rule} blame={incident.blame} evidence={incident.evidence.text!r}"
            if incident.evidence
            else ""
        )
        self._log.log(
            level,
            "phase=%s attempt=%d outcome=%s class=%s rule=%s action=%s delay_s=%g%s: %s",
            fact.phase,
            fact.attempt,
            incident.kind,
            incident.failure_class,
            decision.rule,
            decision.action,
            decision.delay_s,
            evidence,
            decision.reason,
        )

    def _show_event(self, fact: Decided) -> None:
        if fact.decision.action not in RESTARTS:
            return
        emit_event(
            event="prefect-ft.restart",
            resource={
                "prefect.resource.id": f"prefect-ft.run.{self._run_id}",
                "prefect.resource.name": fact.phase,
            },
            related=[
                {
                    "prefect.resource.id": f"prefect.flow-run.{self._flow_run_id}",
                    "prefect.resource.role": "flow-run",
                }
            ],
            payload=self._rows[-1],
        )

    def _show_ledger(self) -> None:
        rows = self._rows
        create_table_artifact(rows, key=LEDGER_KEY, description="What was decided, and why.")
        self._shown_rows = rows


def _row(when: str, fact: Decided) -> dict[str, Any]:
    incident, decision = fact.incident, fact.decision
    return {
        "when": when,
        "phase": fact.phase,
        "attempt": fact.attempt,
        "outcome": incident.kind,
        "class": incident.failure_class,
        "evidence": incident.evidence.text if incident.evidence else None,
        "cause": incident.evidence.rule if incident.evidence else None,
        "blame": incident.blame,
        "rule": decision.rule,
        "action": decision.action,
        "isolated": ", ".join(decision.isolate),
        "resume step": decision.resume_step,
        "reason": decision.reason,
    }
