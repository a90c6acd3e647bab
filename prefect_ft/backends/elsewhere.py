"""Workers on engines that share no files with this machine: copied to, and spoken with through the engine.

A process beside the agent, started by the engine in the same container, relays the agent's socket.
"""

from __future__ import annotations

import io
import json
import selectors
import socket
import ssl
import struct
import tarfile
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import DockerException, NotFound
from requests.exceptions import RequestException

from prefect_ft.backends.base import Address
from prefect_ft.backends.engine import Client, Interpreter
from prefect_ft.errors import BackendError

MAX_WAITING = 1 << 20
"""Bytes that are held for a side that does not take them."""

_HEADER = struct.Struct(">BxxxL")
"""Before each piece of a process's output: which stream, and how many bytes."""

_WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressElsewhere(Address):
    """Where an agent listens in a container; `engine` connects to its engine."""

    engine: Callable[[], Client]
    container: str
    relay: tuple[str, ...]

    def connect(self, timeout_s: float) -> socket.socket:
        """Open a connection; raises OSError."""
        try:
            return _connected(
                self.engine(), self.container, [*self.relay, str(self.socket_path), f"{timeout_s:g}"]
            )
        except (BackendError, DockerException, RequestException) as exc:
            raise ConnectionError(str(exc)) from exc


def relay_words(found: Interpreter, payload: Path) -> tuple[str, ...]:
    """Give the command of the relay in a container."""
    return found.name, "-I", "-S", str(payload / "prefect_ft" / "worker" / "relay.py")


def copy_in(client: Client, container: str, paths: Iterable[Path], found: Interpreter) -> None:
    """Copy files and directories to where they are here; all of it belongs to the agent's user."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path in paths:
            tar.add(path, filter=lambda item: _owned(item, found))
    client.put_archive(container, "/", archive.getvalue())


def _owned(item: tarfile.TarInfo, found: Interpreter) -> tarfile.TarInfo:
    item.uid, item.gid, item.uname, item.gname = found.uid, found.gid, "", ""
    return item


def listens(client: Client, container: str, words: Iterable[str]) -> bool:
    """Wait until an agent listens, or has had its time; `words` are the relay's."""
    waiting = client.exec_create(container, [*words, "wait"], stderr=False)["Id"]
    client.exec_start(waiting)
    return bool(client.exec_inspect(waiting)["ExitCode"] == 0)


def read_there(client: Client, container: str, path: Path) -> Mapping[str, Any] | None:
    """Give the JSON object of a file in a container, running or not; None if there is none."""
    with suppress(NotFound, tarfile.TarError, ValueError):
        pieces, _ = client.get_archive(container, str(path))
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
            file = tar.extractfile(tar.getmembers()[0])
            return dict(json.load(file)) if file is not None else None
    return None


def _connected(client: Client, container: str, words: list[str]) -> socket.socket:
    try:
        started = client.exec_create(container, words, stdin=True, stderr=False)["Id"]
        stream = client.exec_start(started, socket=True)
    except BaseException:
        client.close()
        raise
    ours, theirs = socket.socketpair()
    # The SDK gives a socket for TLS, and its file otherwise; both live as long as what they are of.
    connection: socket.socket = stream if isinstance(stream, socket.socket) else stream._sock
    pump = _Pump(connection, theirs)
    held = (getattr(stream, "_response", stream), client)
    threading.Thread(target=pump.run, args=(held,), name="prefect-ft-relay", daemon=True).start()
    return ours


class _Pump:
    """Carries bytes between an engine's stream of a process and a socket of ours, until one of them ends."""

    def __init__(self, stream: socket.socket, ours: socket.socket) -> None:
        self._stream, self._ours = stream, ours
        self._framed, self._to_us, self._to_stream = bytearray(), bytearray(), bytearray()
        for side in (stream, ours):
            side.setblocking(False)

    def run(self, held: tuple[Any, ...]) -> None:
        """Carry; then close what is `held` meanwhile, because the stream would end with it."""
        try:
            with selectors.DefaultSelector() as selector:
                while self._is_open():
                    self._wait(selector)
            self._ours.setblocking(True)  # whoever reads may be slower than it came
            self._ours.sendall(self._to_us)
        except OSError:
            pass  # either side is gone: so is the other, for who speaks with it
        finally:
            self._ours.close()
            self._stream.close()
            for each in held:
                each.close()

    def _wait(self, selector: selectors.BaseSelector) -> None:
        for side, out, to_other in (
            (self._stream, self._to_stream, self._to_us),
            (self._ours, self._to_us, self._to_stream),
        ):
            wanted = selectors.EVENT_READ if len(to_other) < MAX_WAITING else 0
            wanted |= selectors.EVENT_WRITE if out else 0
            _watch(selector, side, wanted)
        selector.select()

    def _is_open(self) -> bool:
        """Move what can be moved; False: a side has ended, and all that it said has come."""
        theirs = _received(self._stream) if len(self._to_us) < MAX_WAITING else b""
        mine = _received(self._ours) if len(self._to_stream) < MAX_WAITING else b""
        self._framed += theirs or b""
        self._to_us += _unframed(self._framed)
        self._to_stream += mine or b""
        _send(self._ours, self._to_us)
        _send(self._stream, self._to_stream)
        return theirs is not None and mine is not None


def _watch(selector: selectors.BaseSelector, side: socket.socket, wanted: int) -> None:
    is_known = side in selector.get_map()
    if wanted and is_known:
        selector.modify(side, wanted)
    elif wanted:
        selector.register(side, wanted)
    elif is_known:
        selector.unregister(side)


def _received(side: socket.socket) -> bytes | None:
    """Give all that has come, also what TLS has read ahead; None: the side has ended, and nothing is left."""
    data = bytearray()
    while len(data) < MAX_WAITING:
        try:
            piece = side.recv(1 << 16)
        except _WAITS:
            return bytes(data)
        if not piece:
            return bytes(data) or None
        data += piece
    return bytes(data)


def _send(side: socket.socket, waiting: bytearray) -> None:
    while waiting:
        try:
            sent = side.send(waiting[: 1 << 16])
        except _WAITS:
            return
        del waiting[:sent]


def _unframed(framed: bytearray) -> bytes:
    """Take the whole pieces of output out of what an engine sends."""
    output = bytearray()
    while len(framed) >= _HEADER.size:
        _, length = _HEADER.unpack_from(framed)
        if len(framed) < _HEADER.size + length:
            break
        output += framed[_HEADER.size : _HEADER.size + length]
        del framed[: _HEADER.size + length]
    return bytes(output)
