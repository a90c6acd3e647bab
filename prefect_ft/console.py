"""Consoles that outlive their readers, and foreign texts made safe for them.

rich ends the process, and the run with it, when its output has no reader left.
"""

from __future__ import annotations

import logging
import os

from rich.console import Console
from rich.text import Text

from prefect_ft.plaintext import as_line


class QuietConsole(Console):
    """Falls silent when its reader has gone."""

    def on_broken_pipe(self) -> None:
        fall_silent(self)


def plain(text: str) -> Text:
    """Return a text from elsewhere for a console: no markup of ours, nothing that a terminal would obey."""
    return Text(as_line(text))


def fall_silent(console: Console) -> None:
    """Let what a console writes go nowhere from now on, and what else is written where it wrote."""
    console.quiet = True
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, console.file.fileno())
    os.close(nowhere)


def outlive_readers_of_logs() -> None:
    """Make the consoles to which loggers write fall silent when their reader has gone.

    A Prefect worker reads what its flow processes print; when it is killed, their next line would be
    their end.
    """
    known = logging.root.manager.loggerDict.values()
    loggers = [logging.root, *(each for each in known if isinstance(each, logging.Logger))]
    for logger in loggers:
        for handler in logger.handlers:
            console = getattr(handler, "console", None)
            if isinstance(console, Console) and not isinstance(console, QuietConsole):
                console.on_broken_pipe = lambda console=console: fall_silent(console)  # type: ignore[method-assign,misc]
