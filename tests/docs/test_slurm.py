"""What docs/slurm.md has a new user type, word by word: an ordinary user, on a cluster, with nothing but the page."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT, blocks, section

from tests.conftest import need

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PAGE = ROOT / "docs" / "slurm.md"
MOST_S = 300.0
"""How long the first run may take, from the first line that is typed."""

USER = "nobody"


class User:
    """An ordinary user with a home on a file system that all nodes see, and a terminal for each text typed."""

    def __init__(self, cluster: Any, home: Path) -> None:
        self.home = home
        user = pwd.getpwnam(USER)
        self._ids = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        os.chown(home, user.pw_uid, user.pw_gid)
        self._env = {
            "HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "SLURM_CONF": str(cluster.conf), "USER": USER,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1",
            **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_"))},
        }  # fmt: skip
        self._typed: list[subprocess.Popen[bytes]] = []

    def write(self, name: str, text: str) -> None:
        path = self.home / name
        path.write_text(text)
        shutil.chown(path, USER)

    def type(self, text: str) -> subprocess.Popen[bytes]:
        """Type lines into a new terminal; what they print is in `terminal`."""
        with (self.home / "terminal").open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-ec", text], cwd=self.home, env=self._env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True, **self._ids,
            )  # type: ignore[call-overload]  # fmt: skip
        self._typed.append(process)
        return process  # type: ignore[no-any-return]

    def printed(self) -> str:
        return (self.home / "terminal").read_text(errors="replace")[-5000:]

    def done(self, text: str, returns: int = 0) -> None:
        """Type lines, and wait until they have been carried out."""
        assert self.type(text).wait(400) == returns, self.printed()

    def close(self) -> None:
        for process in self._typed:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def user(slurm_nodes: Any) -> Iterator[User]:
    """A home that another user may reach; those of tests are root's alone."""
    home = Path("/var/tmp") / f"pft-user-{os.getpid()}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(mode=0o755)
    made = User(slurm_nodes, home)
    yield made
    made.close()
    slurm_nodes.run("scancel", "-u", USER)
    shutil.rmtree(home, ignore_errors=True)


def clone(at: Path) -> None:
    """A clone without anything that git does not have, which the user can read."""
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{ROOT}", str(at)], check=True)
    subprocess.run(["chmod", "-R", "a+rwX", str(at)], check=True)


def commands() -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", section("slurm.md", "First run"), re.MULTILINE | re.DOTALL)
    return [text for language, text in fenced if not language]


def test_the_first_run_as_a_new_user_types_it(user: User, slurm_nodes: Any) -> None:
    need("git", shutil.which("git") is not None, "it is not installed")
    clone(user.home / "prefect-ft")
    (training,) = blocks(PAGE, "python")
    (job,) = blocks(PAGE, "yaml")
    install, run = commands()
    began = time.monotonic()
    user.done(install)
    installed = time.monotonic()
    user.write("train.py", training)
    user.write("job.yaml", job)
    user.done(f". pft/bin/activate\n{run}")
    ended = time.monotonic()
    sys.stderr.write(f"installed in {installed - began:.0f} s, first run in {ended - installed:.0f} s\n")
    assert ended - began < MOST_S, user.printed()
    assert sorted(path.name for path in (user.home / "checkpoints").glob("step-300*")) == ["step-300.pt"]
    user.done(". pft/bin/activate\nprefect-ft status runs/first\nprefect-ft logs runs/first")
    assert "count: completed at step 300, 0 restarts" in user.printed()
    assert "rank 0 on n0 from step 0" in user.printed()
    await_empty(slurm_nodes)
    _the_second_way(user)
    await_empty(slurm_nodes)


def _the_second_way(user: User) -> None:
    """In a batch script of the user's own: the checkpoints of the first run are there, so it has nothing left to do."""
    (script,) = re.findall(r"^```\n(.*?)^```$", section("slurm.md", "Two ways in"), re.MULTILINE | re.DOTALL)
    user.write("run.sh", script)
    user.done(". pft/bin/activate\nsbatch --wait -o batch.log run.sh\nprefect-ft status runs/first")
    assert "count: completed at step 300, 0 restarts" in user.printed()
    assert "The run first completed" in (user.home / "batch.log").read_text()


def await_empty(cluster: Any) -> None:
    """Wait until no job is in the queue."""
    deadline = time.monotonic() + 30
    while cluster.jobs():
        assert time.monotonic() < deadline, cluster.jobs()
        time.sleep(0.1)
