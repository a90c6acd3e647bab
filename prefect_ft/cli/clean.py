"""`clean`: ends the processes and removes the files that dead runs left behind on this machine."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from prefect_ft import plaintext
from prefect_ft.cli.arguments import add_json
from prefect_ft.cli.exits import COMPLETED, FAILED
from prefect_ft.errors import ConfigError
from prefect_ft.run import Run, holder_of, known_runs
from prefect_ft.run.identity import registry
from prefect_ft.run.ownership import recorded_runtime
from prefect_ft.run.runtime import runtime_root


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option that only lists what would be removed."""
    add_json(parser)
    parser.add_argument("--dry-run", action="store_true", help="only print what would be removed")


def run(arguments: argparse.Namespace) -> int:
    """Remove what was left behind."""
    return _clean(dry_run=arguments.dry_run, as_json=arguments.json)


def _clean(*, dry_run: bool, as_json: bool) -> int:
    """End the processes and remove the directories and links of runs that have ended or are gone."""
    found, removed, is_clean = [], [], True
    for path in _left_behind():
        found.append(str(path))
        try:
            if not dry_run:
                _remove(path)
                removed.append(str(path))
        except OSError as exc:
            is_clean = False
            print(plaintext.as_line(f"error: {path} cannot be removed: {exc.strerror}"), file=sys.stderr)
    _print_cleaned(found, removed, dry_run=dry_run, as_json=as_json)
    return COMPLETED if is_clean else FAILED


def _print_cleaned(found: Sequence[str], removed: Sequence[str], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print(plaintext.as_json({"found": found, "removed": removed}))
        return
    for path in found if dry_run else removed:
        print(plaintext.as_line(f"{'would remove' if dry_run else 'removed'} {path}"))
    if not found:
        print("nothing was left behind")


def _left_behind() -> Iterator[Path]:
    """Yield what runs begun on this machine left behind and cannot need for a resume.

    Anything else in the run-time directory is left alone.
    """
    runs = {run.run_id: run for run in known_runs()}
    for link in sorted(registry().iterdir()) if registry().is_dir() else ():
        run = runs.get(link.name)
        if run is not None and _is_over(run):
            yield from _runtime_directories(run.run_id, run)
        elif _is_dangling(link):
            yield from _runtime_directories(link.name, None)
            yield link


def _is_over(run: Run) -> bool:
    """Return whether a run has ended and no process holds it; False if that is unknown."""
    try:
        return run.record().get("status", "running") != "running" and holder_of(run) is None
    except OSError:
        return False


def _is_dangling(link: Path) -> bool:
    """Return whether the target of a link has been deleted; False if it is only unreachable."""
    if not link.is_symlink():
        return False
    try:
        link.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _runtime_directories(run_id: str, run: Run | None) -> Iterator[Path]:
    """Yield the existing run-time directories of a run: the default one, and the one that its record names."""
    places = {runtime_root() / run_id}
    if run is not None:
        with suppress(ConfigError):  # run.json is damaged and may name any path
            places.add(recorded_runtime(run))
    for place in sorted(places):
        if place.is_dir() and place.lstat().st_uid == os.getuid() and not place.is_symlink():
            yield place


def _remove(path: Path) -> None:
    """Remove a link, or a run-time directory after ending the processes that it names; raises OSError."""
    if path.is_symlink():
        path.unlink()
        return
    from prefect_ft.backends.clearing import clear_directory  # slow to import, and rarely needed

    with suppress(FileNotFoundError):  # another `clean` runs at the same time
        clear_directory(path)
    if path.exists():
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
