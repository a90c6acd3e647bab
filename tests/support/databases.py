"""The database of a Prefect server that has been started before: made once, copied to each server of the tests.

To make its tables takes a server twice as long as all else that it does until it answers.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

NAME = "prefect.db"
"""What Prefect calls it, in its home."""


def prepared(shared: Path) -> Path:
    """Return a home of Prefect with the database in it; `shared` is a directory of all processes that run tests."""
    home = shared / "prefect-home"
    with (shared / "prefect-home.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            making = shared / "prefect-home.new"
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            _make(making)
            making.rename(home)
    return home


def _make(home: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"],
        env={**env, "PREFECT_HOME": str(home)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def copied(home: Path, to: Path, name: str = NAME) -> None:
    """Copy the prepared database into a new home of Prefect."""
    to.mkdir(parents=True, exist_ok=True)
    shutil.copy(home / NAME, to / name)
