"""A Docker engine of the tests' own: started when the first test needs one, ended with the session.

    python tests/support/engine.py install          # Debian's packages, as root
    python tests/support/engine.py start DIRECTORY  # until `stop`; its socket is DIRECTORY/docker.sock
    python tests/support/engine.py stop DIRECTORY

PREFECT_FT_TEST_ENGINE=unix:///… has the tests use an engine that runs already.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ports import free_port

DEADLINE_S = 60.0
IMAGE = "prefect-ft/test:latest"
PACKAGES = ("docker.io", "iproute2", "cgroupfs-mount", "apparmor", "openssl")
"""An engine needs control groups, and where the kernel has AppArmor a parser of its profiles."""
NETWORKS = range(1, 200)
"""Numbers for bridges: several engines on a machine must not share one."""


def why_not() -> str | None:
    """Say what keeps this machine from running an engine; None: nothing that is known."""
    if os.environ.get("PREFECT_FT_TEST_ENGINE"):
        return None
    if os.getuid() != 0:
        return "an engine is started as root"
    missing = [name for name in ("dockerd", "ip") if shutil.which(name) is None]
    return f"{missing[0]} is not installed (python tests/support/engine.py install)" if missing else None


def install() -> None:
    """Install what an engine needs; nothing where it is there."""
    if shutil.which("dockerd") and shutil.which("ip"):
        return
    # The package would start an engine of the machine's own where a service manager runs.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES], env=env, check=True
    )


@contextmanager
def _alone() -> Iterator[None]:
    """While one engine comes up no other does: both would make the same chains of the packet filter."""
    with open(Path(tempfile.gettempdir()) / "prefect-ft-test-engines.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Engine:
    """An engine in a directory; its data, socket, log and pid are in there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "docker.sock"
        self.url = f"unix://{self.socket}"
        self._process: subprocess.Popen[bytes] | None = None
        """The engine where this process started it: then it is to be collected."""

    def client(self) -> Any:
        """A client of the engine's API."""
        import docker

        return docker.APIClient(self.url, version="auto", timeout=60)

    def start(self, *options: str) -> None:
        """Start it and wait until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if " /sys/fs/cgroup" not in Path("/proc/mounts").read_text() and shutil.which("cgroupfs-mount"):
            subprocess.run(["cgroupfs-mount"], check=True)  # no service manager has done it
        bridge = self._bridge()
        with _alone(), (self.directory / "log").open("ab") as log:
            process = self._process = subprocess.Popen(
                [
                    "dockerd",
                    f"--host={self.url}",
                    f"--data-root={self.directory / 'data'}",
                    f"--exec-root={self.directory / 'exec'}",
                    f"--pidfile={self.directory / 'pid'}",
                    f"--bridge={bridge}",
                    "--log-level=warn",
                    *options,
                ],
                # Not the directories of the test that happened to be the first: it would count as theirs.
                env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self._wait_until_it_answers(process)

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not self.answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self.directory / "log").read_text()[-3000:])
            time.sleep(0.05)

    def tls_options(self, address: str) -> list[str]:
        """Make certificates for it and for its clients; return the options with which it listens by TCP."""
        make_certificates(self.directory / "certificates", address)
        port = free_port()
        (self.directory / "tls").write_text(f"tcp://{address}:{port}")
        files = {"cacert": "ca.pem", "cert": "server-cert.pem", "key": "server-key.pem"}
        told = [f"--tls{option}={self.directory / 'certificates' / name}" for option, name in files.items()]
        return [f"--host=tcp://{address}:{port}", "--tlsverify", *told]

    def answers(self) -> bool:
        """Whether it is there."""
        if not self.socket.exists():
            return False
        try:
            client = self.client()
        except Exception:
            return False
        with client:
            return bool(client.ping())

    def _bridge(self) -> str:
        """Make a bridge of its own, or give the one that it had before."""
        file = self.directory / "bridge"
        if not file.exists():
            number = next(
                number for number in NETWORKS if _ip("link", "add", f"pft{number}", "type", "bridge")
            )
            file.write_text(f"pft{number}")
            assert _ip("addr", "add", f"10.213.{number}.1/24", "dev", f"pft{number}")
            assert _ip("link", "set", f"pft{number}", "up")
        return file.read_text()

    def make_image(self) -> None:
        """Return it the image that workers of tests are made of."""
        script = Path(__file__).parents[2] / "deployments" / "make_image.py"
        command = [sys.executable, str(script), IMAGE, "--engine", self.url]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr

    def kill(self) -> None:
        """Let it die; containers go on without it."""
        self._end(signal.SIGKILL)

    def end(self) -> None:
        """Let it end in order; with live-restore containers go on without it."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        pid = int((self.directory / "pid").read_text())
        handle = os.pidfd_open(pid)
        try:
            assert Path(f"/proc/{pid}/comm").read_text().strip() == "dockerd"
            signal.pidfd_send_signal(handle, number)
            assert select.select([handle], [], [], DEADLINE_S)[0], "dockerd does not end"
        finally:
            os.close(handle)
        if self._process is not None:
            self._process.wait()

    def stop(self) -> None:
        """End it, its containers, and what it had."""
        pid = self.directory / "pid"
        if pid.exists() and Path(f"/proc/{pid.read_text()}").exists():
            self._end(signal.SIGTERM)
        while left := _processes_of(self.directory):  # what an engine that was killed has left
            for each in left:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            time.sleep(0.02)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed([each for each in mounts if each.startswith(str(self.directory))]):
            subprocess.run(["umount", "--lazy", mount], check=False)
        if (self.directory / "bridge").exists():
            _ip("link", "del", (self.directory / "bridge").read_text())
        shutil.rmtree(self.directory, ignore_errors=True)


def tls_of(url: str) -> tuple[str, Path]:
    """Return the address by TCP, and the directory of a client's certificates, of an engine that has them."""
    directory = Path(url.removeprefix("unix://")).parent
    return (directory / "tls").read_text(), directory / "certificates"


def make_certificates(directory: Path, address: str = "127.0.0.1") -> None:
    """Make an authority, and what it has signed for a server at an address and for a client."""
    directory.mkdir(parents=True)

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(
        "req", "-x509", *key, "-days", "2", "-subj", "/CN=test", "-keyout", "ca-key.pem", "-out", "ca.pem"
    )
    for prefix, usage in (("server-", "serverAuth"), ("", "clientAuth")):
        (directory / "ext").write_text(f"subjectAltName=IP:{address}\nextendedKeyUsage={usage}\n")
        signed = ["-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-extfile", "ext", "-days", "2"]
        openssl("req", *key, "-subj", f"/CN={usage}", "-keyout", f"{prefix}key.pem", "-out", "request")
        openssl("x509", "-req", "-in", "request", *signed, "-out", f"{prefix}cert.pem")


def _processes_of(directory: Path) -> list[int]:
    """Return the processes with a directory among their words; the standard library alone has to do for this."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if os.fsencode(directory) in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


def _ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0


@contextmanager
def engine(*options: str, tls_at: str | None = None) -> Iterator[Engine]:
    """An engine that lives while entered; `tls_at` is the address at which it listens by TCP too, see `tls_of`."""
    directory = Path(tempfile.mkdtemp(prefix="pft-engine-"))  # short, for its socket's path
    made = Engine(directory)
    try:
        made.start(*options, *(made.tls_options(tls_at) if tls_at else ()))
        yield made
    finally:
        made.stop()


@contextmanager
def engine_for_tests() -> Iterator[str]:
    """Return the URL of the engine that tests use, with the image that their workers are made of."""
    given = os.environ.get("PREFECT_FT_TEST_ENGINE")
    if given:
        there = Engine(Path(given.removeprefix("unix://")).parent)
        there.url = given
        there.make_image()
        yield given
        return
    with engine(tls_at="127.0.0.1") as own:
        own.make_image()
        yield own.url


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["install"]:
            install()
        case ["start", where]:
            Engine(Path(where).absolute()).start()
        case ["stop", where]:
            Engine(Path(where).absolute()).stop()
        case _:
            sys.exit(__doc__)
