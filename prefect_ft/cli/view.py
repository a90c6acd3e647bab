"""The live view of `run`: a table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typing_extensions import assert_never

from prefect_ft.amounts import count, save_noun
from prefect_ft.config import JobConfig
from prefect_ft.console import QuietConsole, plain
from prefect_ft.model import RESTARTS
from prefect_ft.observe import (
    AttemptStarted,
    CheckpointVerified,
    Decided,
    Fact,
    Notice,
    PhaseEnded,
    PhaseStarted,
    Proposed,
    StepReached,
    observed_by,
)
from prefect_ft.plaintext import as_line

MAX_NAMED = 16
"""Systems of an attempt that are named."""

STEP_LINE_S = 5.0
"""Minimum interval between step lines where there is no table."""

STATUS_STYLES = {
    "waiting": "dim",
    "running": "cyan",
    "restarting": "yellow",
    "completed": "green",
    "cancelled": "yellow",
}


@contextmanager
def watching(job: JobConfig) -> Iterator[None]:
    """Show the progress of `job` on standard error while entered; standard output is for the result."""
    console = QuietConsole(stderr=True, highlight=False)
    view = _View(job, console)
    if not console.is_terminal:
        with observed_by(view.take):
            yield
        return
    with (
        Live(console=console, get_renderable=view.table, refresh_per_second=4, transient=True),
        observed_by(view.take),
    ):
        yield


@dataclass(slots=True)
class _Row:
    """The state of a phase in the view."""

    status: str = "waiting"
    attempt: int = 0
    restarts: int = 0
    step: int | None = None
    stage: str | None = None
    verified: str = ""
    target_step: int | None = None


class _View:
    """Folds facts into a table, and prints those worth keeping as lines."""

    def __init__(self, job: JobConfig, console: Console) -> None:
        self._rows = {phase.name: _Row(target_step=phase.target_step) for phase in job.phases}
        self._console = console
        self._step_shown_at = 0.0

    def take(self, fact: Fact) -> None:
        """Take one fact; returns at once."""
        match fact:
            case PhaseStarted():
                self._rows[fact.phase].status = "running"
                self._say(f"{fact.phase}: phase {fact.index + 1} of {fact.phases}, run {fact.run_id}")
            case AttemptStarted():
                self._attempt_started(fact)
            case StepReached():
                self._step_reached(fact)
            case CheckpointVerified():
                self._rows[fact.phase].verified = f"{save_noun(counted=fact.counted)} {fact.step}"
            case Proposed():
                self._rows[fact.phase].status = "waiting"
                self._say(
                    f"{fact.phase}: waits for approval until {fact.until}: {fact.decision.reason}", "yellow"
                )
            case Decided():
                self._decided(fact)
            case PhaseEnded():
                self._rows[fact.phase].status = fact.status
                self._say(f"{fact.phase}: {fact.status}", STATUS_STYLES.get(fact.status, "red"))
            case Notice():
                self._say(fact.text, "dim")
            case _:
                assert_never(fact)

    def table(self) -> Table:
        """Return the current table of phases."""
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("phase", "status", "attempt", "step", "stage", "last good checkpoint", "restarts"):
            table.add_column(name)
        for name, row in self._rows.items():
            target = f" of {row.target_step}" if row.target_step is not None else ""
            table.add_row(
                plain(name),
                Text(as_line(row.status), style=STATUS_STYLES.get(row.status, "red")),
                str(row.attempt or ""),
                "" if row.step is None else f"{row.step}{target}",
                plain(row.stage or ""),
                row.verified,
                str(row.restarts or ""),
            )
        return table

    def _attempt_started(self, fact: AttemptStarted) -> None:
        row = self._rows[fact.phase]
        row.status, row.attempt = "running", fact.attempt
        number = save_noun(counted=fact.counted)
        origin = "from scratch" if fact.resume_step is None else f"from {number} {fact.resume_step}"
        names = list(dict.fromkeys(fact.placement))
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        systems = ", ".join(names[:MAX_NAMED]) + more
        ranks = count(fact.ranks, "rank")
        self._say(f"{fact.phase}: attempt {fact.attempt}: {ranks} on {systems}, {origin}")

    def _step_reached(self, fact: StepReached) -> None:
        row = self._rows[fact.phase]
        row.step, row.stage = fact.step, fact.stage
        now = time.monotonic()
        if not self._console.is_terminal and now - self._step_shown_at >= STEP_LINE_S:
            self._step_shown_at = now
            self._say(f"{fact.phase}: step {fact.step}")

    def _decided(self, fact: Decided) -> None:
        row, decision = self._rows[fact.phase], fact.decision
        if decision.completes:
            return
        if decision.action in RESTARTS:
            row.status = "restarting"
            row.restarts += 1
        if fact.incident.evidence is not None:
            self._say(f"{fact.phase}: attempt {fact.attempt} ended: {fact.incident.evidence.text}")
        self._say(f"{fact.phase}: {decision.rule} → {decision.action}: {decision.reason}", "yellow")

    def _say(self, text: str, style: str = "") -> None:
        line = Text(f"{time.strftime('%H:%M:%S')}  ", style=style).append(plain(text))
        self._console.print(line, soft_wrap=True)
