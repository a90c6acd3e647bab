"""A phase's journal, and how far it has been shown in Prefect."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from prefect_ft.files import read_json, write_json
from prefect_ft.report.tail import Tail

MARK = "shown.json"
"""The file beside the journal that says up to which record it has been shown in Prefect."""


class ShownTail(Tail):
    """A tail that remembers, also for later processes, what has been shown."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        shown = read_json(directory / MARK).get("shown")
        self.shown: int = shown if isinstance(shown, int) else 0

    def mark(self, number: int) -> None:
        """Record that everything up to a record has been shown."""
        self.shown = number
        with suppress(OSError):  # a full disk: a comeback shows it again, under the same names
            write_json(self.directory / MARK, {"shown": number})
