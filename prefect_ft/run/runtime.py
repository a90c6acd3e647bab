"""The run-time directory: sockets and ranks' output, on a local disk, for one user only."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from prefect_ft.errors import ConfigError

MAX_RUNTIME_PATH = 80
"""Bytes; a socket's path may have 107, and the rest is for the worker's part."""


def runtime_directory(run_id: str) -> Path:
    """Make and return the run's directory for sockets and output: on a local disk, for this user only.

    Below PREFECT_FT_RUNTIME_DIR, else the directory for temporary files. Raises ConfigError.
    """
    return made_runtime_directory(runtime_root() / run_id)


def runtime_root() -> Path:
    """Return the directory of this user's run-time directories; it need not exist.

    A PREFECT_FT_RUNTIME_DIR that others share is not changed: this user gets a directory of its own below it.
    """
    named = os.environ.get("PREFECT_FT_RUNTIME_DIR")
    base = Path(named or tempfile.gettempdir()).absolute()
    return base if named and _is_private(base) else base / f"prefect-ft-{os.getuid()}"


def _is_private(directory: Path) -> bool:
    """Whether only this user has access to a directory. True if it does not exist: it is created that way."""
    try:
        status = directory.stat()
    except OSError:
        return True  # made later, or refused then with the reason
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def made_runtime_directory(directory: Path) -> Path:
    """Make a run's recorded directory if it is gone, and return it. Raises ConfigError.

    Permissions are set on new directories, and never changed on existing ones.
    """
    root = directory.parent
    try:
        for path in (root, directory):
            path.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        _check_ours(root)
        _check_ours(directory)
    except OSError as exc:
        raise ConfigError(f"{directory}: {exc.strerror}", field="PREFECT_FT_RUNTIME_DIR") from exc
    if len(os.fsencode(directory)) > MAX_RUNTIME_PATH:
        raise ConfigError(
            f"{directory} is too long for sockets; name a shorter directory", field="PREFECT_FT_RUNTIME_DIR"
        )
    return directory


def _check_ours(directory: Path) -> None:
    """Raise ConfigError where another user owns a directory, or may replace its contents; raises OSError."""
    status = directory.stat()
    if status.st_uid != os.getuid():
        raise ConfigError(f"{directory} belongs to another user", field="PREFECT_FT_RUNTIME_DIR")
    is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
    if is_shared:
        raise ConfigError(f"other users can write to {directory}", field="PREFECT_FT_RUNTIME_DIR")
