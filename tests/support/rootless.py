"""A rootless Docker engine of the tests' own, and programs run as the user to whom it belongs.

    python tests/support/rootless.py install        # Debian's packages, as root

Nothing of the machine is changed: the user, the subordinate ids and a /dev/net/tun for everybody are in a mount
namespace, in which engine and programs run.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from engine import DEADLINE_S, Engine
from engine import install as install_engine

USER, UID = "prefect-ft-rootless", 47011
SUBORDINATE = f"{USER}:600000:65536\n"
PACKAGES = ("uidmap", "rootlesskit", "slirp4netns")
PROGRAMS = ("dockerd", "newuidmap", "rootlesskit", "slirp4netns", "nsenter", "setpriv", "unshare")
SCRIPTS = "/usr/share/docker.io/contrib"
"""Where Debian has dockerd-rootless.sh."""

TUN = (10, 200)
ROOT = Path(__file__).parents[2]


def _script() -> str | None:
    return shutil.which("dockerd-rootless.sh", path=f"{os.environ.get('PATH', '')}:{SCRIPTS}")


def why_not() -> str | None:
    """Say what keeps this machine from running a rootless engine; None: nothing that is known."""
    if os.getuid() != 0:
        return "the user that it belongs to is made by root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    missing += [] if _script() else ["dockerd-rootless.sh"]
    if missing:
        return f"{missing[0]} is not installed (python tests/support/rootless.py install)"
    if UID in {known.pw_uid for known in pwd.getpwall()}:
        return f"there is a user with the number {UID}"
    return None


def install() -> None:
    """Install what it needs; nothing where it is there."""
    install_engine()
    if why_not() is not None:
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        words = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
        subprocess.run(words, env=env, check=True)


class Rootless:
    """The engine and its user; everything is in a directory, whose `home` belongs to the user."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.home = directory, directory / "home"
        self._process: subprocess.Popen[bytes] | None = None
        self.engine = Engine(directory / "run")

    @property
    def url(self) -> str:
        return self.engine.url

    def start(self) -> None:
        """Start it and wait until it answers."""
        for name in ("home", "home/tmp", "run"):
            (self.directory / name).mkdir()
            self.give(self.directory / name)
        os.mknod(self.directory / "tun", 0o020666, os.makedev(*TUN))
        (self.directory / "tun").chmod(0o666)
        for name, line in self._identity().items():
            (self.directory / name).write_text(Path("/etc", name).read_text() + line)
        (self.directory / "begin").write_text(self._beginning())
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-e", str(self.directory / "begin")],
                env={"PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + DEADLINE_S
        while not self.engine.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self.directory / "log").read_text()[-3000:])
            time.sleep(0.05)

    def _identity(self) -> dict[str, str]:
        known = f"{USER}:x:{UID}:{UID}::{self.home}:/bin/sh\n"
        return {"passwd": known, "subuid": SUBORDINATE, "subgid": SUBORDINATE}

    def _beginning(self) -> str:
        """Write what makes the namespace, and becomes the engine in it."""
        mounts = [f"mount --bind {self.directory}/{name} /etc/{name}" for name in self._identity()]
        mounts.append(f"mount --bind {self.directory}/tun /dev/net/tun")
        engine = [
            str(_script()),
            f"--host={self.url}",
            f"--data-root={self.home}/data",
            f"--exec-root={self.directory}/run/docker",
            f"--pidfile={self.directory}/run/pid",
            "--log-level=warn",
        ]
        return "\n".join([*mounts, *self._opening(), f"exec {shlex.join(self._as_user(*engine))}\n"])

    def _opening(self) -> Iterator[str]:
        """Say how to have the user see this Python and this project, below directories that are root's alone."""
        needed = {Path(each).resolve() for each in (sys.prefix, sys.base_prefix, ROOT, tempfile.gettempdir())}
        closed = {parent for path in needed for parent in path.parents if not os.stat(parent).st_mode & 0o001}
        for outer in sorted(each for each in closed if not closed & {*each.parents}):
            below = sorted(path for path in needed if outer in path.parents)
            places = {path: self.directory / f"below-{number}" for number, path in enumerate(below)}
            for path, place in places.items():
                place.mkdir()
                yield f"mount --bind {path} {place}"
            yield f"mount -t tmpfs -o mode=755 prefect-ft-test {outer}"
            for path, place in places.items():
                yield f"mkdir -p {path}; mount --move {place} {path}"

    def _as_user(self, *words: str) -> list[str]:
        own = {"HOME": self.home, "TMPDIR": self.home / "tmp", "XDG_RUNTIME_DIR": self.directory / "run"}
        variables = [f"{name}={value}" for name, value in own.items()]
        path = [f"PATH={os.environ['PATH']}:/usr/sbin:/sbin"]
        user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--"]
        return [*user, "env", f"--chdir={self.home}", *variables, *path, *words]

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the words that run a program as the user, in the engine's namespace."""
        assert self._process is not None
        return ["nsenter", f"--target={self._process.pid}", "--mount", "--", *self._as_user(*words)]

    def give(self, directory: Path) -> None:
        """Make a directory, and what is in it, the user's own."""
        for path in (directory, *directory.rglob("*")):
            os.chown(path, UID, UID, follow_symlinks=False)

    def stop(self) -> None:
        """End it, its containers, and what it had."""
        if self._process is not None:
            if (self.directory / "run" / "pid").exists() and self._process.poll() is None:
                self._process.terminate()
            self._process.wait(DEADLINE_S)
        self.engine.stop()
        shutil.rmtree(self.directory)


@contextmanager
def rootless() -> Iterator[Rootless]:
    """A rootless engine that lives while entered, with the image that workers of tests are made of."""
    directory = Path(tempfile.mkdtemp(prefix="pft-rootless-"))
    directory.chmod(0o755)
    made = Rootless(directory)
    try:
        made.start()
        made.engine.make_image()
        yield made
    finally:
        made.stop()


if __name__ == "__main__":
    if sys.argv[1:] != ["install"]:
        sys.exit(__doc__)
    install()
