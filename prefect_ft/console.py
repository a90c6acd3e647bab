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
    """Return a foreign text for a console, without markup or terminal sequences."""
    return Text(as_line(text))


def fall_silent(console: Console) -> None:
    """Discard what a console writes from now on, and everything else written to its stream."""
    console.quiet = True
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, console.file.fileno())
    os.close(nowhere)


def outlive_readers_of_logs() -> None:
    """Make the consoles to which loggers write fall silent when their reader has gone.

    A Prefect worker reads what its flow processes print; if it is killed, their next line would otherwise
    end them.
    """
    known = logging.root.manager.loggerDict.values()
    loggers = [logging.root, *(each for each in known if isinstance(each, logging.Logger))]
    for logger in loggers:
        for handler in logger.handlers:
            console = getattr(handler, "console", None)
            if isinstance(console, Console) and not isinstance(console, QuietConsole):
                console.on_broken_pipe = lambda console=console: fall_silent(console)  # type: ignore[method-assign,misc]
