"""Workers on engines that share no files with this machine: files and connections go through the engine.

A process beside the agent, started by the engine in the same container, relays the agent's socket.
"""

from __future__ import annotations

import io
import socket
import struct
import tarfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import DockerException, NotFound
from requests.exceptions import RequestException

from prefect_ft.backends.base import Address
from prefect_ft.backends.docker.engine import Client, Interpreter
from prefect_ft.backends.pump import Pump
from prefect_ft.errors import BackendError
from prefect_ft.files import parse_json

_HEADER = struct.Struct(">BxxxL")
"""The header of each frame of a process's output: which stream, and how many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressElsewhere(Address):
    """The address of an agent in a container on another machine; `engine` connects to its engine."""

    engine: Callable[[], Client]
    container: str
    relay: tuple[str, ...]

    def connect(self, timeout_s: float) -> socket.socket:
        """Open a connection; raises OSError."""
        try:
            return _open_relay(
                self.engine(), self.container, [*self.relay, str(self.socket_path), f"{timeout_s:g}"]
            )
        except (BackendError, DockerException, RequestException) as exc:
            raise ConnectionError(str(exc)) from exc


def relay_words(found: Interpreter, payload: Path) -> tuple[str, ...]:
    """Return the command of the relay in a container."""
    return found.name, "-I", "-S", str(payload / "prefect_ft" / "worker" / "relay.py")


def copy_in(client: Client, container: str, paths: Iterable[Path], found: Interpreter) -> None:
    """Copy files and directories to the same paths in a container, owned by the agent's user."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path in paths:
            _add(tar, path, found)
    client.put_archive(container, "/", archive.getvalue())


def _add(tar: tarfile.TarFile, path: Path, found: Interpreter) -> None:
    """Add a file or a whole directory; bytecode that is being written may vanish while its directory is read."""
    with suppress(FileNotFoundError) if path.parent.name == "__pycache__" else nullcontext():
        tar.add(path, recursive=False, filter=lambda item: _owned(item, found))
    if path.is_dir() and not path.is_symlink():
        for each in sorted(path.iterdir()):
            _add(tar, each, found)


def _owned(item: tarfile.TarInfo, found: Interpreter) -> tarfile.TarInfo:
    item.uid, item.gid, item.uname, item.gname = found.uid, found.gid, "", ""
    return item


def listens(client: Client, container: str, words: Iterable[str]) -> bool:
    """Wait until an agent listens or its time is over; return whether it listens. `words` are the relay's command."""
    waiting = client.exec_create(container, [*words, "wait"], stderr=False)["Id"]
    client.exec_start(waiting)
    return bool(client.exec_inspect(waiting)["ExitCode"] == 0)


def read_there(client: Client, container: str, path: Path) -> Mapping[str, Any] | None:
    """Return the JSON object in a file of a container, running or not; None if there is none."""
    with suppress(NotFound, tarfile.TarError, ValueError):
        pieces, _ = client.get_archive(container, str(path))
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
            file = tar.extractfile(tar.getmembers()[0])
            return dict(parse_json(file.read())) if file is not None else None
    return None


def _open_relay(client: Client, container: str, words: list[str]) -> socket.socket:
    try:
        started = client.exec_create(container, words, stdin=True, stderr=False)["Id"]
        stream = client.exec_start(started, socket=True)
    except BaseException:
        client.close()
        raise
    # The SDK returns a socket for TLS, and its file otherwise; `held` keeps their owners alive.
    connection: socket.socket = stream if isinstance(stream, socket.socket) else stream._sock
    return Pump.start(connection, _OutputFrames(), held=(getattr(stream, "_response", stream), client))


class _OutputFrames:
    """An engine's framing of a process: output in frames, input unframed."""

    has_ended = False  # the stream itself ends

    def unwrapped(self, received: bytearray) -> bytes:
        output = bytearray()
        while len(received) >= _HEADER.size:
            _, length = _HEADER.unpack_from(received)
            if len(received) < _HEADER.size + length:
                break
            output += received[_HEADER.size : _HEADER.size + length]
            del received[: _HEADER.size + length]
        return bytes(output)

    def wrapped(self, data: bytes) -> bytes:
        return data
