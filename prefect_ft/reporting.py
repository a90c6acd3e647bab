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
from typing import Any

from prefect.artifacts import create_table_artifact
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.logging import get_run_logger

from prefect_ft.clock import utc_now
from prefect_ft.model import RESTARTS
from prefect_ft.observe import Decided, Fact, observed_by
from prefect_ft.run import Run

DRAIN_S = 10.0
"""How long the end of a run waits for what is still to be shown."""

LEDGER_KEY = "restart-ledger"
LEDGER_ROWS = 500
"""The newest that the table holds; the journal holds all."""

_logger = logging.getLogger(__name__)


@contextmanager
def reporting(run: Run) -> Iterator[None]:
    """Show the decisions of the flow run of this context while entered; nothing outside of a flow run."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        yield
        return
    flow_run_id = str(context.flow_run.id)
    reporter = _Reporter(run.run_id, flow_run_id)
    try:
        with observed_by(reporter.take):
            yield
    finally:
        reporter.close()


class _Reporter:
    """Takes facts at once and shows them when it can, in their order."""

    def __init__(self, run_id: str, flow_run_id: str) -> None:
        self._run_id, self._flow_run_id = run_id, flow_run_id
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
        while (item := self._queue.get()) is not None:
            when, fact = item
            self._rows = [*self._rows, _row(when, fact)][-LEDGER_ROWS:]
            self._try(self._show_log, fact)
            self._try(self._show_event, fact)
            if self._queue.empty():  # else the next one shows this row as well
                self._try(self._show_ledger)
        if self._shown_rows is not self._rows:
            self._try(self._show_ledger)

    def _try(self, show: Callable[..., None], *arguments: Any) -> None:
        try:
            show(*arguments)
        except Exception:
            _logger.debug("could not be shown in Prefect", exc_info=True)

    def _show_log(self, fact: Decided) -> None:
        incident, decision = fact.incident, fact.decision
        level = logging.INFO if decision.action == "complete" else logging.WARNING
        evidence = f" evidence={incident.evidence.text!r}" if incident.evidence else ""
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
        "rule": decision.rule,
        "action": decision.action,
        "isolated": ", ".join(decision.isolate),
        "resume step": decision.resume_step,
        "reason": decision.reason,
    }
