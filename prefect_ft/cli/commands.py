"""The table of commands, and the parser that it makes. A command's module is loaded when the command is typed.

`prefect-ft NAME` is the module `prefect_ft/cli/NAME.py`, with `_` for `-`: `add_arguments` declares its arguments,
`run` does the work and returns an exit code.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

from prefect_ft.cli.arguments import Parser, sentence

COMMANDS: Mapping[str, str] = {
    "run": "run a job here and restart what fails",
    "validate": "check a job file and print it with all defaults",
    "classify": "explain from its logs why a job failed; starts nothing",
    "replay": "show what a policy would decide about recorded incidents; starts nothing",
    "status": "show where a run stands",
    "report": "show what happened to a run, why, and what it cost",
    "resume": "resume a run that failed, was cancelled, or lost its orchestrator",
    "cancel": "end a run; its ranks stop within their grace period",
    "repair": "show damaged lines of a run's journals, or drop them",
    "approve": "answer a decision that waits for approval",
    "list": "list the runs known on this machine, and the process that watches each",
    "logs": "print what a run's ranks printed",
    "clean": "remove what dead runs left behind on this machine",
    "pool": "list and release the systems in quarantine",
    "install-automations": "create the Prefect automations that restart a killed flow run",
}
"""Each command with its one-line help, in the order of `prefect-ft --help`."""


class Command(Protocol):
    """The interface of a command's module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments; imports nothing that takes time."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do the command's work and return the exit code; raises PrefectFTError."""


def command(name: str) -> Command:
    """Load a command's module."""
    return cast("Command", import_module(f"prefect_ft.cli.{name.replace('-', '_')}"))


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed arguments, with `command` set to the function to run; exits on a usage error."""
    parser = Parser(
        prog="prefect-ft",
        description="Makes a training run finish: restarts it from the last good checkpoint and explains why.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_CommandParser)
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text, description=sentence(text), command=name)
    return parser.parse_args(argv)


class _CommandParser(Parser):
    """The parser of one command, which imports the command's module only if that command was typed."""

    def __init__(self, *, command: str, **settings: Any) -> None:
        super().__init__(**settings)
        self._command = command

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        typed = command(self._command)
        typed.add_arguments(self)
        self.set_defaults(command=typed.run)
        return super().parse_known_args(args, namespace)
