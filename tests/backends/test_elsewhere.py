"""Engines that are elsewhere: what is lost on the way is told as such, and what has been said arrives."""

from __future__ import annotations

import io
import socket
import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError

from prefect_ft.backends.docker import elsewhere, transport
from prefect_ft.backends.docker.elsewhere import AddressElsewhere
from prefect_ft.backends.docker.engine import Interpreter
from prefect_ft.backends.pump import Pump
from prefect_ft.errors import BackendError

FAR = "ssh://somebody@127.0.0.1:1"


class Refusing:
    """A client of an engine that starts nothing."""

    is_closed = False

    def exec_create(self, *_: Any, **__: Any) -> None:
        raise APIError("container is not running")

    def close(self) -> None:
        self.is_closed = True


def address(engine: Callable[[], Any]) -> AddressElsewhere:
    return AddressElsewhere(
        socket_path=Path("/agent.sock"),
        host="far",
        engine=engine,
        container="c",
        relay=("python3", "relay.py"),
    )


def test_an_engine_that_is_away_is_a_connection_that_fails() -> None:
    def away() -> Any:
        raise BackendError("no Docker engine answers")

    with pytest.raises(ConnectionError, match="no Docker engine answers"):
        address(away).connect(1.0)


def test_an_engine_that_starts_nothing_is_let_go_of() -> None:
    client = Refusing()
    with pytest.raises(ConnectionError, match="container is not running"):
        address(lambda: client).connect(1.0)
    assert client.is_closed


def test_bytecode_that_goes_while_it_is_copied_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that compiles the same files writes each under a name of its own first."""
    cache = tmp_path / "payload" / "__pycache__"
    cache.mkdir(parents=True)
    for name in ("a.pyc", "b.pyc.123", "c.pyc"):
        (cache / name).write_bytes(name.encode())
    (tmp_path / "payload" / "a.py").write_bytes(b"")
    listed = Path.iterdir

    def and_then_gone(path: Path) -> Iterator[Path]:
        found = sorted(listed(path))
        (cache / "b.pyc.123").unlink(missing_ok=True)
        return iter(found)

    monkeypatch.setattr(Path, "iterdir", and_then_gone)
    sent = io.BytesIO()
    client: Any = SimpleNamespace(put_archive=lambda *told: sent.write(told[2]))
    elsewhere.copy_in(client, "c", [tmp_path / "payload"], Interpreter("python3", 7, 8))
    sent.seek(0)
    with tarfile.open(fileobj=sent) as archive:
        members = {Path(item.name).name: (item.uid, item.gid) for item in archive}
    assert members == dict.fromkeys(("payload", "a.py", "__pycache__", "a.pyc", "c.pyc"), (7, 8))
    with pytest.raises(FileNotFoundError):
        elsewhere.copy_in(client, "c", [tmp_path / "missing"], Interpreter("python3", 7, 8))


def test_what_was_said_before_the_end_comes_to_a_slow_reader_too() -> None:
    """It is more than a socket's buffer holds."""
    said = bytes(range(256)) * 3000
    stream, engine = socket.socketpair()
    reader = Pump.start(stream, elsewhere._OutputFrames())
    with engine:
        engine.sendall(struct.pack(">BxxxL", 1, len(said)) + said)
    heard = b""
    with reader:
        while piece := reader.recv(1 << 12):
            heard += piece
    assert heard == said


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only directory of programs beside the system's; no way to FAR is left afterwards."""
    directory = tmp_path / "bin"
    directory.mkdir()
    with tempfile.TemporaryDirectory(prefix="pft-") as short:  # for the paths of sockets
        monkeypatch.setattr("tempfile.tempdir", short)
        yield directory
        let_go(Path(short))


def let_go(temporary: Path) -> None:
    """Close the way to FAR, which has to leave nothing."""
    if (made := transport._forwards.pop(FAR, None)) is not None:
        made.close()
    assert list(temporary.glob("prefect-ft-ssh-*")) == []


def test_without_ssh_it_is_said_what_to_install(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(programs))
    assert transport.unreachable(FAR) == (
        f"no Docker engine answers at {FAR} (ssh: No such file or directory; install OpenSSH's client)"
    )


def test_an_ssh_that_says_a_lot_is_not_held_up(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a pipe holds; and then there is a socket at which nobody listens."""
    (programs / "ssh").write_text(
        "#!/bin/sh\nhead -c 200000 /dev/zero >&2\n"
        'while [ "$1" != -L ]; do shift; done\ntouch "${2%%:*}"\nexec cat\n'
    )
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    assert "Connection refused" in (transport.unreachable(FAR) or "")
