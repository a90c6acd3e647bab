"""Copies a phase's isolations from its journal into the quarantine, in a thread, so that nothing waits for it.

An orchestrator that died may have left decisions that are not in the file yet: a mark beside the journal
lists those that have been copied. A system that was released since is not added again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from prefect_ft.clock import utc_after
from prefect_ft.errors import ConfigError
from prefect_ft.files import read_json, write_json
from prefect_ft.journal.records import DecisionLine, Line
from prefect_ft.model import Decision
from prefect_ft.observe import Fact, Notice, observed_by, tell
from prefect_ft.run.quarantine import Quarantined, add

MARK = "quarantined.json"
"""Beside the journal: the decisions whose systems have been put into the quarantine."""

LAST_WAIT_S = 5.0
"""How long the end of a phase waits for a file system that does not answer."""


class Recorder:
    """Watches one phase. `lines` returns its journal's lines so far, `directory` is the journal's."""

    def __init__(
        self,
        quarantine: Path,
        directory: Path,
        lines: Callable[[], Sequence[Line]],
        *,
        ttl_s: float | None,
        run: str,
        job: str,
        phase: str,
    ) -> None:
        """`ttl_s`: how long an isolation lasts; None: until a person releases the system."""
        self._quarantine, self._mark = quarantine, directory / MARK
        self._lines, self._ttl_s = lines, ttl_s
        self._entry = Quarantined(system="", since="", run=run, job=job, phase=phase)
        done = read_json(self._mark).get("decisions")
        self._done: list[int] = done if isinstance(done, list) else []
        self._read = 0
        self._orders: queue.SimpleQueue[DecisionLine | None] = queue.SimpleQueue()
        self._troubles: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record decisions while entered, and first those from before."""
        with observed_by(self._heard):
            try:
                yield
            finally:
                self._finish()

    def _heard(self, _: Fact) -> None:
        """Take new lines of the journal; errors are reported here, on the caller's thread."""
        lines = self._lines()
        for line in lines[self._read :]:
            match line:
                case DecisionLine(facts=Decision(isolate=isolate)) if isolate and line.n not in self._done:
                    self._order(line)
                case _:
                    pass
        self._read = len(lines)
        self._report_errors()

    def _report_errors(self) -> None:
        with suppress(queue.Empty):
            while True:
                tell(Notice(text=self._troubles.get_nowait()))

    def _order(self, line: DecisionLine) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="prefect-ft-quarantine", daemon=True)
            self._thread.start()
        self._orders.put(line)

    def _finish(self) -> None:
        if self._thread is None:
            return
        self._orders.put(None)
        self._thread.join(LAST_WAIT_S)
        if self._thread.is_alive():
            self._troubles.put(
                f"{self._quarantine} does not answer: systems may be missing in the quarantine"
            )
        self._report_errors()

    # -- in the thread ----------------------------------------------------------------------------

    def _work(self) -> None:
        while (line := self._orders.get()) is not None:
            try:
                add(self._quarantine, self._entries(line))
            except ConfigError as exc:
                systems = ", ".join(line.decision.isolate)
                self._troubles.put(
                    f"not put into the quarantine, out of use in this run alone: {systems}: {exc}"
                )
                continue
            self._done.append(line.n)
            with suppress(OSError):  # then a comeback does it again
                write_json(self._mark, {"decisions": self._done}, durable=True)

    def _entries(self, line: DecisionLine) -> list[Quarantined]:
        decision = line.decision
        until = None if self._ttl_s is None else utc_after(line.utc, self._ttl_s)
        entry = replace(self._entry, since=line.utc, until=until, rule=decision.rule, reason=decision.reason)
        return [replace(entry, system=system) for system in decision.isolate]
