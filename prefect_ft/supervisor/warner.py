"""Warns of what costs work: in the log and in the journal."""

from __future__ import annotations

from prefect_ft.clock import PhaseClock
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import WarningLine
from prefect_ft.observe import Notice, tell


class Warner:
    """Warns in one phase; what it has warned of is known from the journal."""

    def __init__(self, phase: str, journal: MemoryJournal, clock: PhaseClock) -> None:
        self._phase, self._journal, self._clock = phase, journal, clock

    def has_warned(self, what: str, attempt: int | None = None) -> bool:
        """Return whether it has been warned of this, in that attempt or in any."""
        return any(
            line.what == what and attempt in (None, line.attempt)
            for line in self._journal.lines
            if isinstance(line, WarningLine)
        )

    def warn(self, what: str, text: str, attempt: int) -> None:
        """Warn of it."""
        self._journal.append(WarningLine(attempt=attempt, what=what, text=text), t=self._clock.now())
        tell(Notice(text=f"{self._phase}: warning: {text}"))
