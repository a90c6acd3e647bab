"""`repair`: what of a run's journals is damaged, and how the run goes on without it."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from prefect_ft.cli.arguments import add_json, add_run
from prefect_ft.cli.exits import COMPLETED, FAILED
from prefect_ft.errors import ConfigError
from prefect_ft.files import replace_file
from prefect_ft.journal.lines import Damage, Journal, scan, without_damage
from prefect_ft.journal.records import Lost, RepairedLine
from prefect_ft.run import JOURNAL, find_run, phase_directories, vacancy
from prefect_ft.run.lookup import is_phase, run_of_phase

KEPT = ".damaged"
"""What the name of the copy ends with that keeps a journal as it was."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run and whether its journals are changed."""
    add_json(parser)
    parser.add_argument(
        "--drop",
        action="store_true",
        help="remove them, so that the run can be resumed; a copy keeps the journal",
    )
    add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the damage, or remove it."""
    return _repair(arguments.run, drop=arguments.drop, as_json=arguments.json)


def _repair(name: str, *, drop: bool, as_json: bool) -> int:
    """Show which lines are damaged; with `drop`, remove them from a run that nobody watches."""
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
            print(f"{path}: {len(damaged)} lines removed; {path.name}{KEPT} has the journal as it was")
    if not found:
        print("no line is damaged")
    elif not drop:
        print("what these lines say is lost: failures may not be counted, systems not be isolated any more")
        print("to go on without them: prefect-ft repair --drop, then prefect-ft resume")


def _damaged(path: Path) -> list[Damage]:
    try:
        return scan(path.read_bytes()).damaged
    except FileNotFoundError:
        return []  # the phase is just beginning
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}", file=str(path)) from exc


@contextmanager
def _held(name: str) -> Iterator[None]:
    """Keep others from the run meanwhile; raises RunHeldError where it is watched."""
    run = run_of_phase(Path(name)) if is_phase(name) else find_run(name)
    free = vacancy(run.model_dir) if run is not None else None
    if run is None or free is None or free.previous is None or free.previous.run_id != run.run_id:
        yield  # it was moved away alone, or another run has followed: nobody goes on with it
        return
    holding = free.go_on()
    try:
        yield
    finally:
        holding.lease.release()


def _drop(path: Path, damaged: Sequence[Damage]) -> None:
    """Keep a copy of a journal, and go on with its other lines; the journal says so."""
    place = path.resolve()  # it may lie elsewhere, and be linked here
    try:
        shutil.copy2(place, path.with_name(path.name + KEPT))
        replace_file(place, without_damage(place), durable=True)
    except OSError as exc:
        raise ConfigError(f"cannot be written: {exc.strerror}", file=str(path)) from exc
    with closing(Journal(path)) as journal:
        lost = tuple(Lost(**each._asdict()) for each in damaged)
        journal.append(RepairedLine(lost=lost), t=journal.last_t)
        journal.sync()
