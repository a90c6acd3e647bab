"""The journal of a phase as it grows, for readers that only observe: each line is read once."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from prefect_ft.clock import seconds_since
from prefect_ft.journal.lines import end_of, scan
from prefect_ft.journal.records import Line
from prefect_ft.report.story import PhaseJournal
from prefect_ft.run import JOURNAL, Run


class Tail:
    """One phase's journal; if the file is replaced, it is read from its beginning."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lines: list[Line] = []
        self._place: tuple[int, int] | None = None
        self._offset = 0

    @property
    def lines(self) -> list[Line]:
        """The lines so far; raises OSError."""
        with suppress(FileNotFoundError), open(self.directory / JOURNAL, "rb") as file:
            stat = os.fstat(file.fileno())
            if self._place != (stat.st_dev, stat.st_ino) or stat.st_size < self._offset:
                self._place, self._offset = (stat.st_dev, stat.st_ino), 0  # the file was replaced
                self._lines.clear()
            file.seek(self._offset)
            data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            self._lines += [line for _, line in scan(whole).lines]
        return self._lines

    def journal(self) -> PhaseJournal:
        """Return the phase so far."""
        lines = list(self.lines)
        is_over = not lines or end_of(lines) is not None
        now_t = None if is_over else float(lines[0].t) + seconds_since(lines[0].utc)
        return PhaseJournal(lines=lines, now_t=now_t)


def phase_directories_of(run: Run) -> list[Path]:
    """Return the directories of a run's phases so far."""
    return [run.model_dir / Path(phase["directory"]) for phase in run.record().get("phases", [])]
