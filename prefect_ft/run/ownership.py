"""Checks which run a run-time directory belongs to: the one that marked it, not a copy of that run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from prefect_ft.errors import ConfigError, RunElsewhereError
from prefect_ft.files import read_json, write_json
from prefect_ft.run.identity import PROCESSES_ON, Run
from prefect_ft.run.machine import Machine, this_machine

OWNER = "owner.json"
"""The file, in a run's run-time directory, of the path, device and inode of the run's own directory."""


def recorded_runtime(run: Run) -> Path:
    """Return the run-time directory that run.json names, which need not exist.

    Raises ConfigError for a path that does not end in the run's id: the directory is removed with the run.
    """
    recorded = run.record().get("runtime")
    if not isinstance(recorded, str):
        raise _damaged(run, "says nothing of the run-time directory")
    path = Path(recorded)
    if not path.is_absolute() or path.name != run.run_id or ".." in path.parts or path.is_symlink():
        raise _damaged(run, f"names {recorded} as run-time directory, which is not this run's")
    return path


def removable_runtime(run: Run) -> Path:
    """Return the run-time directory for removal; raises ConfigError where it is not marked as this run's."""
    path = recorded_runtime(run)
    if path.exists() and not _is_the_same(run.root, read_json(path / OWNER)):
        raise _damaged(run, f"names {path} as run-time directory, which is not marked as this run's")
    return path


def own_runtime(run: Run) -> None:
    """Mark the run-time directory, if it exists, as this run's; raises ConfigError.

    Ignores a directory that cannot be written: then a copy is not recognised, and the directory is never removed.
    """
    path = recorded_runtime(run)
    with suppress(OSError):
        write_json(path / OWNER, run.place())


def _damaged(run: Run, what: str) -> ConfigError:
    return ConfigError(f"{what}; put the file back from a copy", file=str(run.root / "run.json"))


def check_own(run: Run) -> None:
    """Raise ConfigError for a run whose workers belong to another directory, user or machine; raises OSError too.

    A directory that was moved within its file system is the run itself. In another file system it looks like a copy:
    `take_as_moved` accepts it. A clone of a whole volume cannot be distinguished from the run.
    """
    _check_user(run.root)
    _check_machine(run)
    recorded = _recorded_place(run)
    if not recorded or _is_at(run.root, recorded):
        return
    original, here = Path(str(recorded["root"])).parents[1], run.model_dir
    _check_no_copy(run, recorded)
    raise ConfigError(
        f"run {run.run_id} was begun in {original}; if that was moved here, and is no copy, take it up with"
        f" `prefect-ft resume {here} --moved`",
        file=str(here),
    )


def take_as_moved(run: Run) -> None:
    """Record the run's present directory, and this machine as that of its workers.

    Raises ConfigError for a copy of a run that still exists.
    """
    _check_no_copy(run, _recorded_place(run))
    run.describe(**run.here())
    if "runtime" in run.record():
        own_runtime(run)


def _check_machine(run: Run) -> None:
    """Raise RunElsewhereError where a run's worker processes may run on another machine."""
    record = run.record()
    there = Machine.from_json(record.get(PROCESSES_ON))
    if there is None or record.get("status") != "running" or not there.is_another(this_machine()):
        return
    raise RunElsewhereError(
        f"the workers of run {run.run_id} are processes of {there.host}, and may still train there: resume or cancel"
        f" it on {there.host}. If that is off and stays off: `prefect-ft resume {run.model_dir} --moved`",
        file=str(run.model_dir),
    )


def _recorded_place(run: Run) -> Mapping[str, object]:
    """Return where a run was last: by its run-time directory, or where that is gone, by run.json."""
    record = run.record()
    owner = read_json(recorded_runtime(run) / OWNER) if "runtime" in record else {}
    place = owner or record.get("place")
    return place if isinstance(place, dict) else {}


def _is_at(root: Path, place: Mapping[str, object]) -> bool:
    """Whether a run is where it was: a move keeps the inode; a restored or remounted directory keeps the path."""
    return root.stat().st_ino == place.get("inode") or str(root.absolute()) == place.get("root")


def _check_no_copy(run: Run, place: Mapping[str, object]) -> None:
    if place and not _is_at(run.root, place) and _is_there(Path(str(place.get("root"))), run):
        original, copy = Path(str(place["root"])).parents[1], run.model_dir
        raise ConfigError(
            f"is a copy of {original}, and the workers of run {run.run_id} are the original's. Remove"
            f" {copy / '.prefect-ft'} to begin a run of its own here; its checkpoints stay",
            file=str(copy),
        )


def _check_user(root: Path) -> None:
    """Raise ConfigError where another user created a run's directory, and OSError.

    Compared with a new file beside it: file systems may map users to other ids.
    """
    with tempfile.TemporaryFile(dir=root.parent) as mine:
        uid = os.fstat(mine.fileno()).st_uid
    owner = root.stat().st_uid
    if owner != uid:
        raise ConfigError(
            f"belongs to user {owner}, and the commands of its job would run as user {uid}."
            f" If you trust them: chown -R {uid} {root}",
            file=str(root),
        )


def _is_the_same(root: Path, owner: Mapping[str, object]) -> bool:
    status = root.stat()
    return (status.st_dev, status.st_ino) == (owner.get("device"), owner.get("inode"))


def _is_there(original: Path, run: Run) -> bool:
    """Whether this run also exists at its original place."""
    try:
        return (
            not os.path.samefile(original, run.root) and read_json(original / "run.json")["run"] == run.run_id
        )
    except (OSError, LookupError):
        return False
