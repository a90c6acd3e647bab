"""`pool list` and `pool release`: the systems in quarantine, in one file or in all files that known runs name."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from prefect_ft import plaintext
from prefect_ft.cli.arguments import Parser, add_json, sentence
from prefect_ft.cli.exits import COMPLETED, INVALID
from prefect_ft.errors import ConfigError
from prefect_ft.run import known_runs
from prefect_ft.run.quarantine import Quarantined, read
from prefect_ft.run.quarantine import release as release_in

_COLUMNS = ("system", "since", "until", "job", "phase", "run", "rule", "reason")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions, each with its own arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=Parser)
    _add_action(actions, "list", "list the systems in quarantine, and the reasons", _list)
    release = _add_action(actions, "release", "allow new runs to use a system again", _release)
    release.add_argument("system", metavar="SYSTEM")


def _add_action(
    actions: argparse._SubParsersAction[Parser], name: str, text: str, action: Callable[..., int]
) -> Parser:
    parser = actions.add_parser(name, help=text, description=sentence(text))
    add_json(parser)
    parser.add_argument(
        "--file", metavar="PATH", help="the quarantine file; default: all that the jobs of known runs name"
    )
    parser.set_defaults(action=action)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the action."""
    code: int = arguments.action(arguments)
    return code


def _list(arguments: argparse.Namespace) -> int:
    """Print the systems in quarantine; a damaged file is reported, and the others are shown."""
    found: list[tuple[Path, Quarantined]] = []
    code = COMPLETED
    for path in _files(arguments.file):
        try:
            found += [(path, entry) for entry in read(path)]
        except ConfigError as error:
            code = INVALID
            print(f"error: {error}", file=sys.stderr)
    if arguments.json:
        print(plaintext.as_json([{"file": str(path), **entry.to_json()} for path, entry in found], indent=2))
    elif found:
        _show(found)
    elif code == COMPLETED:
        print("no system is quarantined")
    return code


def _show(found: list[tuple[Path, Quarantined]]) -> None:
    from rich.table import Table

    from prefect_ft.cli.show import console_for
    from prefect_ft.console import plain

    columns = [name for name in _COLUMNS if any(getattr(entry, name) is not None for _, entry in found)]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in (*columns, "file"):
        table.add_column(name, overflow="fold")
    for path, entry in found:
        cells = [str(getattr(entry, name) or "") for name in columns]
        table.add_row(*map(plain, (*cells, str(path))))
    console_for().print(table)


def _release(arguments: argparse.Namespace) -> int:
    """Remove a system from every quarantine that lists it; raises ConfigError if none does."""
    system, file = arguments.system, arguments.file
    released = []
    damaged = None
    for path in _files(file):
        try:
            if release_in(path, system):
                released.append(str(path))
        except ConfigError as error:
            damaged = error
            print(f"error: {error}", file=sys.stderr)
    if not released and damaged is None:
        raise ConfigError(f"{system} is not in quarantine{f' in {file}' if file else ' in any known file'}")
    if arguments.json:
        print(plaintext.as_json({"system": system, "released": released}))
    for name in [] if arguments.json else released:
        print(plaintext.as_line(f"released {system} from {name}: new runs can use it"))
    return COMPLETED if damaged is None else INVALID


def _files(file: str | None) -> list[Path]:
    """Return the given file, or else those that the jobs of known runs name."""
    if file is None:
        return sorted(set(_known_files()))
    if not os.path.isfile(file):  # also False for a path that is too long
        raise ConfigError("no such file", file=file)
    return [Path(file)]


def _known_files() -> Iterator[Path]:
    for run in known_runs():
        if isinstance(name := run.job().get("quarantine"), str):
            yield Path(name)
