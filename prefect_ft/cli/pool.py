"""`pool list` and `pool release`: the systems in quarantine, of one file or of all that runs here name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from prefect_ft import plaintext
from prefect_ft.cli import COMPLETED, INVALID
from prefect_ft.cli.show import console_for
from prefect_ft.console import plain
from prefect_ft.errors import ConfigError
from prefect_ft.pool.quarantine import Quarantined, read
from prefect_ft.pool.quarantine import release as release_in
from prefect_ft.run import known_runs

_COLUMNS = ("system", "since", "until", "job", "phase", "run", "rule", "reason")


def list_pool(file: str | None, *, as_json: bool) -> int:
    """Print the systems in quarantine; a file that is damaged is told, and the others are shown."""
    found: list[tuple[Path, Quarantined]] = []
    code = COMPLETED
    for path in _files(file):
        try:
            found += [(path, entry) for entry in read(path)]
        except ConfigError as error:
            code = INVALID
            print(f"error: {error}", file=sys.stderr)
    if as_json:
        print(plaintext.as_json([{"file": str(path), **entry.to_json()} for path, entry in found], indent=2))
    elif found:
        _show(found)
    elif code == COMPLETED:
        console_for().print("no system is quarantined")
    return code


def _show(found: list[tuple[Path, Quarantined]]) -> None:
    columns = [name for name in _COLUMNS if any(getattr(entry, name) is not None for _, entry in found)]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in (*columns, "file"):
        table.add_column(name, overflow="fold")
    for path, entry in found:
        cells = [str(getattr(entry, name) or "") for name in columns]
        table.add_row(*map(plain, (*cells, str(path))))
    console_for().print(table)


def release(system: str, file: str | None, *, as_json: bool) -> int:
    """Take a system out of every quarantine that has it; raises ConfigError where none does."""
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
        raise ConfigError(f"{system} is in no quarantine{f' of {file}' if file else ' that is known here'}")
    if as_json:
        print(plaintext.as_json({"system": system, "released": released}))
    for name in [] if as_json else released:
        print(plaintext.as_line(f"released {system} from {name}: runs that begin from now on use it"))
    return COMPLETED if damaged is None else INVALID


def _files(file: str | None) -> list[Path]:
    """Give the file that is named, else those that the jobs of the runs known here name."""
    if file is None:
        return sorted(set(_known_files()))
    if not os.path.isfile(file):  # False too for what is too long to be a path
        raise ConfigError("there is no such file", file=file)
    return [Path(file)]


def _known_files() -> Iterator[Path]:
    for run in known_runs():
        if isinstance(name := run.job().get("quarantine"), str):
            yield Path(name)
