"""The argument parser of all commands, and the arguments that several commands share."""

from __future__ import annotations

import argparse
from typing import NoReturn

from prefect_ft.plaintext import as_line


class Parser(argparse.ArgumentParser):
    """An argument parser whose error messages are plain text, whatever the arguments contain."""

    def error(self, message: str) -> NoReturn:
        super().error(as_line(message))


def sentence(words: str) -> str:
    """Return a command's one-line help as a sentence, the description of its own help."""
    return f"{words[0].upper()}{words[1:]}."


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`, which every command takes."""
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, and nothing else")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the run that a command works on."""
    parser.add_argument("run", metavar="RUN", help="a model directory, a phase directory or a run id")


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add a job file and overrides of its values."""
    parser.add_argument("job", metavar="JOB.yaml")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="override a value of the job file"
    )
    add_command(parser)


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the command of a file that has no phases."""
    parser.add_argument(
        "--command",
        metavar="WORDS",
        dest="job_command",
        help="the program and its arguments, where the file is a trainer configuration or a ModelArts request",
    )
