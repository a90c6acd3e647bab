"""A supervisor of one agent for tests: says what it is told to, and waits for what must come."""

from __future__ import annotations

import fcntl
import json
import os
import select
import struct
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect_ft.backends.base import Address, AgentSettings
from prefect_ft.run import Certificates
from prefect_ft.supervisor.events import EVENTS
from prefect_ft.worker import frames, protocol
from prefect_ft.worker.keys import verifier_of

DEADLINE_S = 30.0
"""What must come comes within this, on the slowest machine; nothing here waits for it to pass."""

RUN, KEY = "run-1", "secret"
PYTHON = sys.executable


def settings(**changes: Any) -> AgentSettings:
    """What agents of tests are told: quiet ticks, nobody an orphan, no checkpoints."""
    fields = {
        "run_id": RUN,
        "key": KEY,
        "phase_index": 0,
        "sample_period_s": 3600.0,
        "orphan_timeout_s": 3600.0,
        "spool_bytes": 64 << 20,
        "checkpoints": None,
    }
    return AgentSettings(**{**fields, **changes})


def checkpoints(path: Path, settle_s: float = 2.0, *, keep_copies: bool = False) -> dict[str, Any]:
    settings = {"layout": "auto", "pattern": None, "settle_s": settle_s, "keep_copies": keep_copies}
    return {"path": str(path), **settings}


def address_of(home: Path) -> Address:
    """Where the agent of a worker on this machine listens."""
    return Address(socket_path=home / "agent.sock", host="127.0.0.1")


def script(text: str) -> list[str]:
    """The command of a rank that runs this."""
    return [PYTHON, "-S", "-u", "-c", text]


class AgentClient:
    """One connection. Every event that comes is held against the protocol's table."""

    def __init__(self, address: Address, epoch: int = 1) -> None:
        """Connect; raises OSError."""
        self.epoch = epoch
        self.heard: list[dict[str, Any]] = []
        """All events, in their order."""
        self._unread: list[dict[str, Any]] = []
        self._reader = frames.FrameReader()
        self._socket = address.connect(DEADLINE_S)

    def say(self, op: str, **fields: Any) -> None:
        self.say_bytes(frames.encode({"op": op, **fields}))

    def say_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def attach(self, **changes: Any) -> dict[str, Any]:
        """Attach and return what the agent answers."""
        fields = {"version": frames.VERSION, "run": RUN, "key": KEY, "epoch": self.epoch, "have": {}}
        self.say("attach", **{**fields, **changes})
        return self.expect("attached", "refused")

    def expect_attached(self) -> dict[str, Any]:
        """What the agent answered when this client attached."""
        return next(event for event in self.heard if event["ev"] == "attached")

    def token(self, attempt: int) -> list[int]:
        return [self.epoch, 0, attempt]

    def start(
        self,
        command: list[str],
        attempt: int = 1,
        *,
        cwd: str = "/",
        ranks: int = 1,
        unset: Sequence[str] = (),
        secrets: Sequence[str] = (),
        **env: str,
    ) -> dict[str, Any]:
        """Start ranks and return what the agent answers."""
        own = {str(rank): {"RANK": str(rank)} for rank in range(ranks)}
        fields = {"command": command, "cwd": cwd, "env": env, "ranks": own, "note": {}}
        more = {"unset": unset, "secrets": secrets}
        given = {name: list(value) for name, value in more.items() if value}
        self.say("start", token=self.token(attempt), **fields, **given)
        return self.expect("started", "start_failed", "refused")

    def stop(self, attempt: int = 1, grace_s: float = 0, complete: bool = False) -> dict[str, Any]:
        """Stop and return what the agent answers."""
        self.say("stop", token=self.token(attempt), grace_s=grace_s, complete=complete)
        return self.expect("stopped", "refused")

    def expect(self, *kinds: str, **fields: Any) -> dict[str, Any]:
        """Wait for an event of one of these kinds with these fields; what came before stays for later."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            for event in self._unread:
                if event["ev"] in kinds and fields.items() <= event.items():
                    self._unread.remove(event)
                    return event
            assert time.monotonic() < deadline, f"no {kinds} {fields} among {self.heard[-20:]}"
            self.hear()

    def hear(self) -> None:
        """Take what comes next."""
        data = self._socket.recv(1 << 20)
        if not data:
            raise EOFError
        for event in self._reader.feed(data):
            assert_event(event)
            self.heard.append(event)
            self._unread.append(event)

    def hear_to_the_end(self) -> list[dict[str, Any]]:
        """Take everything until the agent hangs up."""
        try:
            while True:
                self.hear()
        except (EOFError, ConnectionError):
            return self.heard

    def printed(self, rank: int = 0, first: int = 0) -> bytes:
        """What a rank has printed from the offset `first` on; no byte is missing and none comes twice."""
        pieces = [event for event in self.heard if event["ev"] == "output" and event["rank"] == rank]
        text = b""
        for piece in pieces:
            assert piece["offset"] == first + len(text)
            text += piece["text"].encode("utf-8", "surrogateescape")
        return text

    def expect_printed(self, text: str, rank: int = 0, first: int = 0) -> None:
        """Wait until a rank has printed this."""
        deadline = time.monotonic() + DEADLINE_S
        while text.encode() not in self.printed(rank, first):
            assert time.monotonic() < deadline, f"no {text!r} in {self.printed(rank, first)!r}"
            self.hear()

    def expect_nothing(self) -> None:
        """Let a moment pass in which nothing comes."""
        assert self.says_nothing(0.01)

    def says_nothing(self, for_s: float) -> bool:
        """Whether nothing comes in this time but samples, which come all the time."""
        deadline = time.monotonic() + for_s
        first = len(self.heard)
        while (left_s := deadline - time.monotonic()) > 0 and select.select([self._socket], [], [], left_s)[
            0
        ]:
            self.hear()
        return all(event["ev"] == "sample" for event in self.heard[first:])

    def close(self) -> None:
        self._socket.close()


def assert_event(event: Mapping[str, Any]) -> None:
    """Hold an event against the protocol's table."""
    fields = {"token": protocol.TOKEN, **EVENTS[event["ev"]]}
    required = {name for name, expected in fields.items() if not expected.may_be_absent}
    assert {"ev", *required} <= set(event) <= {"ev", *fields}, event
    said = ((name, expected) for name, expected in fields.items() if name in event)
    assert [name for name, expected in said if not expected.holds(event[name])] == [], event


def write_agent_config(
    home: Path, network: Mapping[str, Any] | None = None, notice_s: float = 0, **changes: Any
) -> Path:
    """Make a worker's directory and its agent.json, as a backend does."""
    home.mkdir()
    known = settings(**changes)
    config = {
        "run": known.run_id,
        "verifiers": [verifier_of(known.key)],
        "epoch": 0,
        "worker": 0,
        "system": "s0",
        "directory": str(home),
        "socket": str(home / "agent.sock"),
        "orchestrator_uid": os.getuid(),
        "sample_period_s": known.sample_period_s,
        "orphan_timeout_s": known.orphan_timeout_s,
        "spool_bytes": known.spool_bytes,
        "output": known.output,
        "signs": list(known.signs),
        "device_command": known.device_command,
        "checkpoints": known.checkpoints,
        "rendezvous": known.rendezvous,
        "notice_s": notice_s,
        "warm": known.warm,
        "system_lock": None,
        "network": network,
    }
    (home / "agent.json").write_text(json.dumps(config))
    return home / "agent.json"


WORKER = "0-0-1-0"
"""The name of a worker in its certificate."""


def network(
    port: int,
    certificates: Certificates,
    silence_timeout_s: float = 5.0,
    partition_timeout_s: float = 3600.0,
    worker: str = WORKER,
) -> dict[str, Any]:
    """What an agent is told of the network."""
    shown = certificates.worker(worker)
    return {
        "port": port,
        "identity": {"own": shown.own, "trusts": shown.trusts},
        "api": [],
        "silence_timeout_s": silence_timeout_s,
        "partition_timeout_s": partition_timeout_s,
    }


def processes_of(*directories: Path) -> dict[int, list[str]]:
    """The living processes that carry a directory in their command line or environment, with their words."""
    marks = [os.fsencode(directory) for directory in directories]
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            words = _read(f"/proc/{name}/cmdline")
            carried = words + _read(f"/proc/{name}/environ") if words else b""
        except OSError:
            continue
        if any(mark in carried for mark in marks):
            found[int(name)] = words.decode(errors="replace").split("\0")[:-1]
    return found


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def wait_until_ended(pid: int, within_s: float = DEADLINE_S) -> None:
    """Wait for the end of any process."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], within_s)[0], f"{pid} does not end: {_words(pid)}"
    finally:
        os.close(handle)


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return "gone by now"


class Gate:
    """A FIFO by which a rank tells the test where it is, or waits for the test; nothing sleeps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    def wait(self) -> str:
        """Wait until a rank writes into it, and return what it wrote."""
        while True:
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                assert select.select([fd], [], [], DEADLINE_S)[0], f"nobody came to {self.path}"
                if text := os.read(fd, 4096).decode():
                    return text
            finally:
                os.close(fd)  # the one before had not closed it yet

    def open(self, text: str = "go") -> None:
        """Let a rank go on that reads from it."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                fd = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:  # nobody reads yet; the kernel has no way to wait for that with a deadline
                assert time.monotonic() < deadline, f"nobody waits at {self.path}"
                time.sleep(0.001)
        try:
            os.write(fd, text.encode())
            while _unread(fd):  # a rank that is interrupted opens it anew: nothing may be lost in between
                assert time.monotonic() < deadline, f"nobody reads {self.path}"
                time.sleep(0.001)
        finally:
            os.close(fd)


def _unread(fd: int) -> int:
    """Return how many bytes of a pipe wait to be read."""
    return struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]
