"""Which run a run-time directory belongs to: the one that marked it, and no copy of that run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from prefect_ft.errors import ConfigError
from prefect_ft.files import read_json, write_json
from prefect_ft.run.identity import Run

OWNER = "owner.json"
"""The file, in a run's run-time directory, of the path, device and inode of the run's own directory."""


def recorded_runtime(run: Run) -> Path:
    """Return the run-time directory that run.json names, which need not be there.

    Raises ConfigError for a path that does not end in the run's id: what lies there ends with the run.
    """
    told = run.told().get("runtime")
    if not isinstance(told, str):
        raise _damaged(run, "says nothing of the run-time directory")
    path = Path(told)
    if not path.is_absolute() or path.name != run.run_id or ".." in path.parts or path.is_symlink():
        raise _damaged(run, f"names {told} as run-time directory, which is not this run's")
    return path


def removable_runtime(run: Run) -> Path:
    """Return the run-time directory, to be removed; raises ConfigError where it is not marked as this run's."""
    path = recorded_runtime(run)
    if path.exists() and not _is_the_same(run.root, read_json(path / OWNER)):
        raise _damaged(run, f"names {path} as run-time directory, which is not marked as this run's")
    return path


def own_runtime(run: Run) -> None:
    """Mark the run-time directory, if it is there, as this run's; raises ConfigError.

    Where nothing can be written it stays as it is: then a copy is not recognised, and the directory is left.
    """
    path = recorded_runtime(run)
    with suppress(OSError):
        status = run.root.stat()
        owner = {"root": str(run.root.absolute()), "device": status.st_dev, "inode": status.st_ino}
        write_json(path / OWNER, owner)


def _damaged(run: Run, what: str) -> ConfigError:
    return ConfigError(f"{what}; put the file back from a copy", file=str(run.root / "run.json"))


def check_own(run: Run) -> None:
    """Raise ConfigError for a copy of a run whose original is still there: its workers are the original's.

    One that was moved is the run itself. Where the run-time directory is gone, or of a version that did not take
    this down, a copy cannot be told from the run.
    """
    if "runtime" not in run.told():
        return  # it never had workers
    owner = read_json(recorded_runtime(run) / OWNER)
    if owner and not _is_the_same(run.root, owner) and _is_there(Path(str(owner.get("root"))), run):
        original, copy = Path(str(owner["root"])).parents[1], run.model_dir
        raise ConfigError(
            f"is a copy of {original}, and the workers of run {run.run_id} are the original's. Remove"
            f" {copy / '.prefect-ft'} to begin a run of its own here; its checkpoints stay",
            file=str(copy),
        )


def _is_the_same(root: Path, owner: Mapping[str, object]) -> bool:
    status = root.stat()
    return (status.st_dev, status.st_ino) == (owner.get("device"), owner.get("inode"))


def _is_there(original: Path, run: Run) -> bool:
    """Whether this run is also at another place than where it was found."""
    try:
        return (
            not os.path.samefile(original, run.root) and read_json(original / "run.json")["run"] == run.run_id
        )
    except (OSError, LookupError):
        return False
