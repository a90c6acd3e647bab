"""A PostgreSQL of the tests' own: a cluster in a directory, on a Unix socket, gone with the test.

`python tests/support/postgres.py install`, as root, installs Debian's package.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER = "postgres"
"""Of the package: the server refuses to run as root."""
DEADLINE_S = 60


def programs() -> Path | None:
    """Return the directory of the newest server's programs; they are on nobody's PATH in Debian."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return found[-1].parent if found else None


def why_not() -> str | None:
    """Say what keeps this machine from running a PostgreSQL; None: nothing that is known."""
    if programs() is None:
        return "its server is not installed (python tests/support/postgres.py install)"
    if os.getuid() == 0 and USER not in {known.pw_name for known in pwd.getpwall()}:
        return f"it does not run as root, and there is no user {USER}"
    return None


def install() -> None:
    """Install the server; nothing where it is there."""
    if why_not() is None:
        return
    # The package would start a server of the machine's own where a service manager runs.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "postgresql"], env=env, check=True
    )


class Postgres:
    """An empty database in a directory; its socket, data and log are in there."""

    def __init__(self, directory: Path) -> None:
        found = programs()
        assert found is not None
        self.directory, self._programs = directory, found
        self._user = USER if os.getuid() == 0 else None
        self.url = f"postgresql+asyncpg://{USER}@/postgres?host={directory}"

    def start(self) -> None:
        """Make the cluster and wait until it answers."""
        (self.directory / "log").touch()
        if self._user is not None:
            shutil.chown(self.directory, self._user)
            shutil.chown(self.directory / "log", self._user)
        self._run("initdb", f"--username={USER}", "--auth=trust", "--no-sync")
        options = f"-c listen_addresses= -c unix_socket_directories={self.directory} -c fsync=off"
        self._run("pg_ctl", "start", "--wait", f"--timeout={DEADLINE_S}", "--log=log", f"--options={options}")

    def stop(self) -> None:
        """End it with all its connections."""
        if (self.directory / "data" / "postmaster.pid").exists():
            self._run("pg_ctl", "stop", "--mode=immediate")

    def _run(self, program: str, *words: str) -> None:
        """Run one of its programs; what it says goes to the log: the server would keep a pipe open."""
        command = [self._programs / program, "--pgdata=data", *words]
        with (self.directory / "log").open("ab") as log:
            done = subprocess.run(
                command, cwd=self.directory, user=self._user, stdout=log, stderr=log, check=False
            )
        assert done.returncode == 0, (self.directory / "log").read_text()


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL that lives while entered."""
    directory = Path(tempfile.mkdtemp(prefix="pft-postgres-"))  # short, for its socket's path
    made = Postgres(directory)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1:] != ["install"]:
        sys.exit(__doc__)
    install()
