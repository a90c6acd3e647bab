"""What the parsers of commands share: the parser itself, and arguments that several commands take."""

from __future__ import annotations

import argparse
from typing import NoReturn

from prefect_ft.plaintext import as_line


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are plain text, whatever the words are that it complains of."""

    def error(self, message: str) -> NoReturn:
        super().error(as_line(message))


def sentence(words: str) -> str:
    """Return what a list of commands says of one as the description in its own help."""
    return f"{words[0].upper()}{words[1:]}."


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option that every command takes."""
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, and nothing else")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the run that a command is about."""
    parser.add_argument("run", metavar="RUN", help="a model directory, a phase directory or a run id")


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add a job file and what is put over its values."""
    parser.add_argument("job", metavar="JOB.yaml")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="override a value of the job file"
    )
