"""A run in Prefect while this process executes it: loaded beside it, shown as soon as Prefect's API answers.

Nothing waits for it until the run has ended, and then not for long: the journal has what it could not show.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from prefect_ft.config import JobConfig
from prefect_ft.observe import AttemptStarted, Fact, Notice, observed_by, tell
from prefect_ft.orchestrate.live import Begun, begun_run

LOAD_S = 2.0
"""How long Prefect is not loaded while no rank has been started: that takes a processor."""

AGAIN_S = 5.0
"""How long to wait before an API is asked again that could not be used."""

PROMPT_S = 1.0
"""After so long at the end of a run it is said what is waited for."""

END_S = 60.0
"""How long the end of a run waits for Prefect to show it."""

CANCELLED_END_S = 5.0
"""How long it waits where a person, or what speaks for one, has stopped the run."""

_SENDERS = "prefect._internal.concurrency"
"""The logger of Prefect's threads that send events and log lines; it prints, whatever the console's level is."""

_log = logging.getLogger(__name__)


@contextmanager
def shown_in_prefect() -> Iterator[PrefectView]:
    """Show the run that begins while entered; waits at the end until it has been shown."""
    view = PrefectView()
    with observed_by(view.take):
        try:
            yield view
        finally:
            view.finish()


class PrefectView:
    """The thread that shows one run."""

    def __init__(self) -> None:
        self._ranks_run = threading.Event()
        self._thread: threading.Thread | None = None
        self._begun: Begun | None = None

    def begin(self, job: JobConfig, begun: Begun) -> None:
        """Show a run."""
        self._begun = begun
        work = contextvars.copy_context().run
        self._thread = threading.Thread(
            target=work, args=(self._show, job, begun), name="prefect-ft-view", daemon=True
        )
        self._thread.start()

    def take(self, fact: Fact) -> None:
        """Take a fact; returns at once."""
        if isinstance(fact, AttemptStarted):
            self._ranks_run.set()

    def finish(self) -> None:
        """Wait until the run has been shown; Ctrl-C ends the waiting."""
        self._ranks_run.set()
        if self._thread is None or self._begun is None:
            return
        with suppress(KeyboardInterrupt):
            self._thread.join(PROMPT_S)
            if self._thread.is_alive():
                tell(Notice(text="waiting until Prefect shows the run; Ctrl-C ends this"))
                self._thread.join(END_S if self._begun.stop.wanted is None else CANCELLED_END_S)
        if self._thread.is_alive():
            _silence_prefect()
        if self._thread.is_alive() or not self._begun.is_followed.is_set():
            tell(Notice(text="the run is not shown in Prefect; its journal has everything"))

    def _show(self, job: JobConfig, begun: Begun) -> None:
        self._ranks_run.wait(LOAD_S)
        begun_run.set(begun)
        is_reported = False
        while (problem := _follow(job)) is not None and not begun.is_followed.is_set():
            if not is_reported:
                is_reported = True
                tell(Notice(text=f"Prefect's API cannot be used: {problem}; the run goes on without it"))
            if begun.live.wait(AGAIN_S):
                return


def _silence_prefect() -> None:
    """Hide what Prefect logs in this process from now on: that it can no longer send updates is said already."""
    logging.raiseExceptions = False
    logging.getLogger(_SENDERS).addFilter(lambda _: False)  # where Prefect is still loading, it resets levels


def _follow(job: JobConfig) -> str | None:
    """Have Prefect run the flow, which follows the run; return why Prefect cannot be used."""
    try:
        from prefect.exceptions import Abort

        from prefect_ft.flows import train_flow

        with suppress(Abort):
            train_flow(job, return_state=True)
    except Exception as exc:
        _log.debug("Prefect cannot be used", exc_info=True)
        return str(exc) or type(exc).__name__
    return None
