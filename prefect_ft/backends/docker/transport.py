"""Transports to an engine by its URL: a socket of this machine, TCP with TLS, or SSH.

Certificates are those of Docker's own client; SSH logins are up to ssh's configuration.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from docker.tls import TLSConfig

from prefect_ft.errors import BackendError

CONNECT_TIMEOUT_S = 2.0
"""How long an engine may take to accept a connection."""

SSH_TIMEOUT_S = 20.0
"""How long an SSH login may take."""

CERTIFICATES = ("ca.pem", "cert.pem", "key.pem")
REMOTE_SOCKET = "/var/run/docker.sock"


def is_here(url: str) -> bool:
    """Whether an engine shares this machine's files: then workers' directories are mounted instead of copied."""
    return url.startswith("unix://")


def host_of(url: str) -> str:
    """Return the name of an engine's machine."""
    return urlsplit(url).hostname or "127.0.0.1"


def client_arguments(url: str) -> dict[str, Any]:
    """Return the arguments of Docker's SDK for an engine; raises BackendError with what is missing."""
    if url.startswith("ssh://"):
        return {"base_url": f"unix://{_forward(url).socket}"}
    if is_here(url):
        return {"base_url": url}
    directory = _certificates(url)
    ca, cert, key = (str(directory / name) for name in CERTIFICATES)
    return {"base_url": url, "tls": TLSConfig(client_cert=(cert, key), ca_cert=ca, verify=True)}


def unreachable(url: str) -> str | None:
    """Return why no engine answers, in plainer words than a client library's; None: one does."""
    try:
        if url.startswith("ssh://"):
            return _connection_failure(url, socket.AF_UNIX, str(_forward(url).socket))
        if is_here(url):
            return _connection_failure(url, socket.AF_UNIX, url.removeprefix("unix://"))
        _certificates(url)
    except BackendError as exc:
        return str(exc)
    return _connection_failure(url, socket.AF_INET, (host_of(url), urlsplit(url).port))


def _connection_failure(url: str, family: socket.AddressFamily, address: Any) -> str | None:
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.settimeout(CONNECT_TIMEOUT_S)
        try:
            probe.connect(address)
        except PermissionError:
            return f"no permission for {address}: add this user to the group that owns it, or run as who may"
        except OSError as exc:
            why = f"no Docker engine answers at {url} ({exc.strerror or exc})"
            return f"{why}: start it, or give another one's `engine`"
    return None


def _certificates(url: str) -> Path:
    """Return the directory of the certificates for TLS, where Docker's client looks for them."""
    directory = Path(os.environ.get("DOCKER_CERT_PATH") or Path.home() / ".docker")
    if missing := [name for name in CERTIFICATES if not (directory / name).is_file()]:
        message = f"{url} needs TLS, and {directory} has no {missing[0]}"
        raise BackendError(f"{message}: set DOCKER_CERT_PATH to a directory with {', '.join(CERTIFICATES)}")
    return directory


# -- SSH ----------------------------------------------------------------------------------------------


class _Forward:
    """An ssh process that forwards the engine's socket to this machine; it ends with this process."""

    def __init__(self, url: str) -> None:
        """Raises BackendError with ssh's message."""
        self._directory = Path(tempfile.mkdtemp(prefix="prefect-ft-ssh-"))
        self.socket = self._directory / "docker.sock"
        self._log = self._directory / "ssh.log"
        """A file, since no thread reads a pipe while ssh runs."""
        try:
            self._process = self._started(url)
        except OSError as exc:
            shutil.rmtree(self._directory, ignore_errors=True)
            why = f"{exc.strerror}; install OpenSSH's client"
            raise BackendError(f"no Docker engine answers at {url} (ssh: {why})") from exc
        atexit.register(self.close)
        deadline = time.monotonic() + SSH_TIMEOUT_S
        while not self.socket.exists():
            if not self.is_alive or time.monotonic() > deadline:
                failure = self._failure()
                self.close()
                raise BackendError(f"no Docker engine answers at {url} (ssh: {failure})")
            time.sleep(0.01)

    def _started(self, url: str) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(
                self._command(url), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _command(self, url: str) -> list[str]:
        """Return the ssh command; the remote `cat` ends when this process does, and ssh with it."""
        parts = urlsplit(url)
        options = (
            "BatchMode=yes",
            "ExitOnForwardFailure=yes",
            "ServerAliveInterval=15",
            "ServerAliveCountMax=2",
        )
        destination = f"{parts.username}@{parts.hostname}" if parts.username else str(parts.hostname)
        port = ("-p", str(parts.port)) if parts.port else ()
        forward = f"{self.socket}:{parts.path or REMOTE_SOCKET}"
        return [
            "ssh",
            *(word for each in options for word in ("-o", each)),
            "-T",
            *port,
            "-L",
            forward,
            destination,
            "cat",
        ]

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def _failure(self) -> str:
        if self.is_alive:
            return "it does not log in"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"

    def close(self) -> None:
        """End ssh and remove the socket. Idempotent."""
        atexit.unregister(self.close)
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._directory, ignore_errors=True)


_forwards: dict[str, _Forward] = {}
_one_at_a_time = threading.Lock()


def _forward(url: str) -> _Forward:
    """Return this process's forward to an engine, a new one where the last has ended."""
    with _one_at_a_time:
        known = _forwards.get(url)
        if known is not None and known.is_alive:
            return known
        if known is not None:
            known.close()
        made = _forwards[url] = _Forward(url)
        return made
