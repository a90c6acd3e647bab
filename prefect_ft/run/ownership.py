"""Whose a run-time directory is: the run's whose own directory it names, and no copy's of that one."""

from __future__ import annotations

import os
from pathlib import Path

from prefect_ft.errors import ConfigError
from prefect_ft.files import read_json, write_json
from prefect_ft.run.identity import Run

OWNER = "owner.json"
"""The file, in a run's run-time directory, of the path, device and inode of the run's own directory."""


def recorded_runtime(run: Run) -> Path:
    """Return the run-time directory that run.json names, which need not be there.

    Raises ConfigError for one that is not named as the run is: what it names is ended and removed with the run.
    """
    told = run.told().get("runtime")
    file = str(run.root / "run.json")
    if not isinstance(told, str):
        raise ConfigError("says nothing of the run-time directory", file=file)
    path = Path(told)
    if not path.is_absolute() or path.name != run.run_id or ".." in path.parts or path.is_symlink():
        raise ConfigError(f"names {told} as run-time directory, which is not this run's", file=file)
    return path


def own_runtime(run: Run) -> None:
    """Take down in the run-time directory whose it is; raises OSError, ConfigError."""
    root = run.root.absolute()
    status = root.stat()
    owner = {"root": str(root), "device": status.st_dev, "inode": status.st_ino}
    write_json(recorded_runtime(run) / OWNER, owner)


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


def _is_the_same(root: Path, owner: dict[str, object]) -> bool:
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
