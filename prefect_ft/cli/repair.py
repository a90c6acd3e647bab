"""`repair`: the damaged lines of a run's journals, and their removal."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from prefect_ft.amounts import count
from prefect_ft.cli.arguments import add_json, add_run
from prefect_ft.cli.exits import COMPLETED, FAILED
from prefect_ft.errors import ConfigError
from prefect_ft.files import replace_file
from prefect_ft.journal.lines import Damage, Journal, scan, without_damage
from prefect_ft.journal.records import Lost, RepairedLine
from prefect_ft.run import JOURNAL, find_run, phase_directories, vacancy
from prefect_ft.run.lookup import is_phase, run_of_phase

COPY_SUFFIX = ".damaged"
"""The suffix of the copy that keeps the original journal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run, and whether its damaged lines are removed."""
    add_json(parser)
    parser.add_argument(
        "--drop",
        action="store_true",
        help="remove the damaged lines, so that the run can be resumed; keeps a copy of the journal",
    )
    add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the damage, or remove it."""
    return _repair(arguments.run, drop=arguments.drop, as_json=arguments.json)


def _repair(name: str, *, drop: bool, as_json: bool) -> int:
    """Show which lines are damaged; with `drop`, remove them if no process watches the run."""
    found = {directory / JOURNAL: _damaged(directory / JOURNAL) for directory in phase_directories(name)}
    found = {path: damaged for path, damaged in found.items() if damaged}
    if drop and found:
        with _held(name):
            for path, damaged in found.items():
                _drop(path, damaged)
    if as_json:
        lost = [{"file": str(path), **each._asdict()} for path, damaged in found.items() for each in damaged]
        print(json.dumps({"damaged": lost, "dropped": drop and bool(found)}))
    else:
        _show(found, drop=drop)
    return COMPLETED if drop or not found else FAILED


def _show(found: dict[Path, list[Damage]], *, drop: bool) -> None:
    for path, damaged in found.items():
        for each in damaged:
            print(f"{path}:{each.line}: byte {each.offset}: {each.why}")
        if drop:
            lines = count(len(damaged), "line")
            print(f"{path}: {lines} removed; {path.name}{COPY_SUFFIX} keeps the original")
    if not found:
        print("no damaged lines")
    elif not drop:
        print("these lines are lost: past failures may not count, and isolated systems may be used again")
        print("to continue without them: prefect-ft repair --drop, then prefect-ft resume")


def _damaged(path: Path) -> list[Damage]:
    try:
        return scan(path.read_bytes()).damaged
    except FileNotFoundError:
        return []  # the phase has only just begun
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}", file=str(path)) from exc


@contextmanager
def _held(name: str) -> Iterator[None]:
    """Hold the run meanwhile; raises RunHeldError if another process holds it."""
    run = run_of_phase(Path(name)) if is_phase(name) else find_run(name)
    free = vacancy(run.model_dir) if run is not None else None
    if run is None or free is None or free.previous is None or free.previous.run_id != run.run_id:
        yield  # the phase was moved away, or a later run replaced it: nothing can resume it
        return
    holding = free.resume()
    try:
        yield
    finally:
        holding.lease.release()


def _drop(path: Path, damaged: Sequence[Damage]) -> None:
    """Copy a journal, remove its damaged lines, and record that in it."""
    place = path.resolve()  # the journal may be a link
    try:
        shutil.copy2(place, path.with_name(path.name + COPY_SUFFIX))
        replace_file(place, without_damage(place), durable=True)
    except OSError as exc:
        raise ConfigError(f"cannot be written: {exc.strerror}", file=str(path)) from exc
    with closing(Journal(path)) as journal:
        lost = tuple(Lost(**each._asdict()) for each in damaged)
        journal.append(RepairedLine(lost=lost), t=journal.last_t)
        journal.sync()
