"""The reporter's thread: notifications only wake it; it reads what it shows from the run's journals.

Log lines and events are records: each is shown once, in order, and retried until it has been. A state's name is
about the present: a late one is skipped. Table, page and progress show the current state: the newest is enough.
"""

from __future__ import annotations

import contextvars
import json
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path

from prefect.logging import get_run_logger

from prefect_ft.errors import ConfigError, JournalError
from prefect_ft.model import RESTARTS
from prefect_ft.observe import AttemptStarted, Decided, Fact, PhaseEnded, PhaseStarted, Proposed, StepReached
from prefect_ft.plaintext import as_line
from prefect_ft.prefect_edge.reporting.api import FlowRunApi, OpenApi
from prefect_ft.prefect_edge.reporting.asking import Asking
from prefect_ft.prefect_edge.reporting.pages import LEDGER_KEY, PAGE_KEY, ledger, recovery_page
from prefect_ft.prefect_edge.reporting.progress import Progress
from prefect_ft.prefect_edge.reporting.records import (
    DecisionRecord,
    EventNote,
    Record,
    approval_wanted,
    events_of,
    level_of,
    line_of,
    records_of,
    state_name,
)
from prefect_ft.prefect_edge.reporting.tail import ShownTail
from prefect_ft.report.story import story_of
from prefect_ft.report.tail import phase_directories_of
from prefect_ft.run import Run

QUIET_S = 1.0
"""How long to wait before a restart is shown: showing it would compete with it for interpreter and cores."""

ASK_S = 5.0
"""How often to ask whether the flow run is to be cancelled, while nothing happens."""

AGAIN_S = 2.0
"""How long until a failed update is retried."""

REFRESH_S = 2.0
"""The shortest interval between two updates of table and page."""

STALE_S = 30.0
"""How long until the name of a state is outdated."""

DRAIN_IDLE_S = 15.0
"""How long the end of a run waits for an API that does not answer."""

CANCELLED = "cancelled in Prefect"
"""The source of a stop that was requested there."""

DRAIN_MAX_S = 120.0
"""How long it waits for one that answers slowly."""

_logger = logging.getLogger(__name__)


class _AbandonedError(Exception):
    """The run has ended, and its end no longer waits for the reporter."""


class Reporter:
    """Shows one run in Prefect, from its construction until `close`."""

    def __init__(self, run: Run, api: FlowRunApi, on_cancel: Callable[[str], None]) -> None:
        self._run, self._api = run, api
        self._on_cancel = on_cancel
        self._began = datetime.now(timezone.utc)
        self._log = get_run_logger()
        self._tails: dict[Path, ShownTail] = {}
        self._logged: set[tuple[str, int]] = set()
        """Records whose line is in this process's own log."""
        self._tried: tuple[str, int] | None = None
        """The record that may have arrived although no answer came."""
        self._states: deque[tuple[float, str, str | None]] = deque()
        self._wanted: deque[EventNote] = deque()
        """Events of decisions that wait for a person."""
        self._asking = Asking(run)
        self._progress = Progress()
        self._has_news = self._is_idle = self._is_recovering = False
        self._refreshed_s = 0.0
        self._is_settled = self._cancel_seen = False
        self._over = threading.Event()
        self._last_success_s = time.monotonic()
        self._closing = self._abandoned = False
        self._connection = ExitStack()
        self._open: OpenApi | None = None
        self._wakes: queue.SimpleQueue[Fact | None] = queue.SimpleQueue()
        # Prefect's calls find the flow run in the context of their caller.
        work = contextvars.copy_context().run
        self._thread = threading.Thread(
            target=work, args=(self._work,), name="prefect-ft-reporter", daemon=True
        )
        self._thread.start()

    def take(self, fact: Fact) -> None:
        """Take a fact; returns at once."""
        match fact:
            case StepReached():
                self._progress.reached(fact)
            case PhaseStarted() | PhaseEnded():
                self._progress.begin(fact)
                self._wakes.put(fact)
            case AttemptStarted() | Decided() | Proposed():
                self._wakes.put(fact)
            case _:
                pass

    def close(self) -> None:
        """Wait until everything is shown, but not for long where the API does not answer."""
        self._closing = True
        self._over.set()
        self._wakes.put(None)
        began_s = time.monotonic()
        while self._thread.is_alive():
            self._thread.join(0.1)
            now_s = time.monotonic()
            if now_s - max(began_s, self._last_success_s) > DRAIN_IDLE_S or now_s - began_s > DRAIN_MAX_S:
                self._abandoned = True
                _logger.warning(
                    "the Prefect API is slow: some restarts are not shown there; the journal has them"
                )
                return

    # -- the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        with self._connection:
            while not self._abandoned:
                is_done = self._try()
                if is_done and self._closing and self._wakes.empty():
                    return
                is_soon = self._has_news or self._cancel_seen or self._asking.is_waiting
                self._wait(AGAIN_S if not is_done else REFRESH_S if is_soon else ASK_S)

    def _wait(self, timeout_s: float) -> None:
        """Wait until something happens, or the next periodic look is due; do not disturb a restart."""
        try:
            facts = [self._wakes.get(timeout=timeout_s)]
        except queue.Empty:
            self._is_idle = True
            return
        self._is_idle = False
        if isinstance(facts[0], Decided) and facts[0].decision.action in RESTARTS:
            self._over.wait(QUIET_S)
        while not self._wakes.empty():
            facts.append(self._wakes.get())
        for fact in facts:
            self._note(fact)

    def _note(self, fact: Fact | None) -> None:
        self._has_news |= isinstance(fact, (Decided, AttemptStarted, PhaseEnded))
        now_s = time.monotonic()
        if isinstance(fact, Decided) and (name := state_name(fact.decision)) is not None:
            self._states.append((now_s, name, as_line(fact.decision.reason)))
            self._is_recovering = True
        elif isinstance(fact, Proposed):
            self._wanted.append(approval_wanted(self._run.run_id, fact))
        elif isinstance(fact, AttemptStarted) and self._is_recovering:
            self._states.append((now_s, "Running", None))
            self._is_recovering = False

    def _try(self) -> bool:
        """Show everything pending; return whether all of it has been shown."""
        try:
            self._show(self._connected())
        except (ConfigError, JournalError) as exc:
            self._fail(exc)
            return True  # a damaged journal will still be damaged the next time
        except Exception as exc:
            self._fail(exc)
            return False
        return True

    def _fail(self, exc: Exception) -> None:
        _logger.debug("could not be shown in Prefect: %s", exc, exc_info=True)
        self._open = None
        try:
            self._connection.close()
        except Exception:
            _logger.debug("a connection did not close", exc_info=True)

    def _connected(self) -> OpenApi:
        if self._open is None:
            self._open = self._connection.enter_context(self._api.open())
        return self._open

    def _succeeded(self) -> None:
        """Note that the API answers; raise where the run's end no longer waits: what is shown now might be outdated."""
        self._last_success_s = time.monotonic()
        if self._abandoned:
            raise _AbandonedError

    def _show(self, api: OpenApi) -> None:
        if not self._is_settled:
            self._settle(api)
        self._show_states(api)
        while self._wanted:
            api.event(self._wanted[0])
            self._wanted.popleft()
        for tail in self._phases():
            for record in records_of(self._run.run_id, tail.directory.name, tail.lines, tail.shown):
                self._show_record(api, tail, record)
        if not self._closing:
            self._asking.look(api, self._phases())
            self._succeeded()
        self._show_standing(api)
        if self._is_idle and not self._closing and api.is_cancelled():
            if self._cancel_seen:  # let a worker's SIGTERM arrive first
                self._on_cancel(CANCELLED)
            self._cancel_seen = True

    def _settle(self, api: OpenApi) -> None:
        """Handle what an earlier process of the flow run left behind, and requests made meanwhile."""
        if api.was_cancelled():
            self._on_cancel(CANCELLED)
        api.end_orphaned_tasks(self._began)
        self._is_settled = True
        self._succeeded()

    def _phases(self) -> list[ShownTail]:
        for directory in phase_directories_of(self._run):
            if directory not in self._tails:
                self._tails[directory] = ShownTail(directory)
        return list(self._tails.values())

    def _show_states(self, api: OpenApi) -> None:
        while self._states:
            since_s, name, message = self._states[0]
            is_last = len(self._states) == 1
            if time.monotonic() - since_s < STALE_S or (is_last and not self._closing):
                api.name_state(name, message)
                self._succeeded()
            self._states.popleft()

    def _show_record(self, api: OpenApi, tail: ShownTail, record: Record) -> None:
        key = (tail.directory.name, record.number)
        if isinstance(record, DecisionRecord):
            self._show_line(api, key, record)
        for note in events_of(record):
            api.event(note)
            self._succeeded()
        tail.mark(record.number)
        self._has_news = True

    def _show_line(self, api: OpenApi, key: tuple[str, int], record: DecisionRecord) -> None:
        line = line_of(record)
        if key not in self._logged:
            self._logged.add(key)
            self._log.log(level_of(record), line, extra={"send_to_api": False})
        if self._tried != key or not api.has_log(line, record.utc):
            self._tried = key
            api.log(level_of(record), line, record.utc)
            self._succeeded()

    def _show_standing(self, api: OpenApi) -> None:
        """Show the current state: table and page after changes, progress periodically."""
        now_s = time.monotonic()
        for key, data, description in self._progress.due(now_s, is_last=self._closing):
            api.put_artifact(key, "progress", data, description)
            self._succeeded()
        if not self._has_news or (now_s - self._refreshed_s < REFRESH_S and not self._closing):
            return
        story = story_of([tail.journal() for tail in self._phases()])
        if rows := ledger(story):
            api.put_artifact(LEDGER_KEY, "table", json.dumps(rows), "What was decided, and why.")
            self._succeeded()
        if story.phases:
            api.put_artifact(PAGE_KEY, "markdown", recovery_page(story), "What happened, and what it cost.")
            self._succeeded()
        self._has_news, self._refreshed_s = False, time.monotonic()
