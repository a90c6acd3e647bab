"""The run-time directory: sockets and ranks' output, on a local disk, for one user only."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from prefect_ft.errors import ConfigError

MAX_RUNTIME_PATH = 80
"""Bytes; a socket's path has 107 and the rest is the worker's."""


def runtime_directory(run_id: str) -> Path:
    """Make and give the run's directory for sockets and output: on a local disk, for this user only.

    Below PREFECT_FT_RUNTIME_DIR, else the directory for temporary files. Raises ConfigError.
    """
    return made_runtime_directory(runtime_root() / run_id)


def runtime_root() -> Path:
    """Give the directory of this user's run-time directories; it need not be there."""
    base = os.environ.get("PREFECT_FT_RUNTIME_DIR")
    return Path(base) if base else Path(tempfile.gettempdir()) / f"prefect-ft-{os.getuid()}"


def made_runtime_directory(directory: Path) -> Path:
    """Make a run's directory if it is gone, and give it: the run remembers it. Raises ConfigError."""
    root = directory.parent
    try:
        directory.mkdir(parents=True, mode=0o700, exist_ok=True)
        status = root.stat()
    except OSError as exc:
        raise ConfigError(f"{directory}: {exc.strerror}", field="PREFECT_FT_RUNTIME_DIR") from exc
    if status.st_uid != os.getuid():
        raise ConfigError(f"{root} belongs to somebody else", field="PREFECT_FT_RUNTIME_DIR")
    root.chmod(stat.S_IRWXU)
    if len(os.fsencode(directory)) > MAX_RUNTIME_PATH:
        raise ConfigError(
            f"{directory} is too long for sockets; name a shorter directory", field="PREFECT_FT_RUNTIME_DIR"
        )
    return directory
