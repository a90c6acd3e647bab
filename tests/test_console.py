"""A console whose reader has gone falls silent; it does not end the process."""

from __future__ import annotations

import logging
import os

import pytest
from rich.console import Console

from prefect_ft.console import QuietConsole, outlive_readers_of_logs


class ConsoleHandler(logging.Handler):
    """As Prefect's: it writes to a console of rich."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        self.console.print(record.getMessage())


@pytest.fixture
def unread() -> int:
    """A descriptor to write to whose reader has gone."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    return write_end


def test_a_log_that_nobody_reads_any_more_goes_on(unread: int) -> None:
    with os.fdopen(unread, "w") as file:
        logger = logging.getLogger("prefect_ft.tests.console")
        handler = ConsoleHandler(Console(file=file))
        logger.addHandler(handler)
        try:
            outlive_readers_of_logs()
            for _ in range(3):
                logger.warning("x" * 10_000)
            file.write("and what others write there goes nowhere too")
        finally:
            logger.removeHandler(handler)


def test_a_live_view_that_nobody_sees_any_more_goes_on(unread: int) -> None:
    with os.fdopen(unread, "w") as file:
        console = QuietConsole(file=file)
        console.print("x" * 10_000)
        assert console.quiet
