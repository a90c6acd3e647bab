"""Fixtures of the test folders that start agents; each folder's conftest takes them over."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from agents import AgentClient, address_of, processes_of, settings, wait_until_ended, write_agent_config

from prefect_ft.backends.base import Worker
from prefect_ft.backends.payload import payload_directory
from prefect_ft.backends.process.backend import ProcessBackend

_starts = 0
"""How many processes this one has started."""


def _count(event: str, _: tuple[Any, ...]) -> None:
    global _starts  # noqa: PLW0603  (a hook of the interpreter's)
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"):
        _starts += 1


sys.addaudithook(_count)


@dataclass
class LivingWorker:
    """A worker with its agent, on the process backend."""

    backend: ProcessBackend
    worker: Worker
    home: Path
    clients: list[AgentClient]

    @property
    def log(self) -> str:
        """What the agent said to its standard error: nothing, if all is well."""
        return (self.home / "agent.log").read_text()

    def client(self, epoch: int = 1) -> AgentClient:
        """A new connection that has not attached."""
        self.clients.append(AgentClient(address_of(self.home), epoch))
        return self.clients[-1]

    def attached(self, epoch: int = 1, **changes: Any) -> AgentClient:
        """A new connection that has attached."""
        client = self.client(epoch)
        assert client.attach(**changes)["ev"] == "attached"
        return client


MakeWorker = Callable[..., LivingWorker]


@pytest.fixture(autouse=True)
def nobody_left(runtime_dir: Path, tmp_path: Path) -> Iterator[None]:
    """After each test nobody lives who carries one of its directories; who is about to end is waited for."""
    before = _starts
    yield
    if _starts == before:
        return  # to look through all processes takes longer than most tests
    left = processes_of(runtime_dir, tmp_path)
    for pid in left:
        wait_until_ended(pid, within_s=5)
    if left:
        left = processes_of(runtime_dir, tmp_path)
    assert not left, left


@pytest.fixture
def make_worker(runtime_dir: Path, nobody_left: None) -> Iterator[MakeWorker]:
    """Make workers with `settings(...)`; they end with the test, whatever became of them."""
    made: list[LivingWorker] = []
    directory = runtime_dir / "run"
    directory.mkdir()

    def make(env: dict[str, str] | None = None, **changes: Any) -> LivingWorker:
        backend = ProcessBackend(settings(**changes), directory, {"s0": env or {}})
        worker = Worker(number=0, system="s0", epoch=1, decision=len(made))
        address = backend.create([worker])[0]
        made.append(LivingWorker(backend, worker, address.socket_path.parent, []))
        return made[-1]

    yield make
    for living in made:
        living.backend.destroy([living.worker])
        for client in living.clients:
            client.close()


@pytest.fixture
def agent(make_worker: MakeWorker) -> LivingWorker:
    """One worker with its agent."""
    return make_worker()


@pytest.fixture
def client(agent: LivingWorker) -> AgentClient:
    """A client that is attached to `agent`."""
    return agent.attached()


@dataclass
class HandMadeWorker:
    """A worker whose agent was started by hand: by another interpreter, with other limits, with a fault."""

    home: Path
    process: subprocess.Popen[bytes]
    clients: list[AgentClient]

    @property
    def log(self) -> str:
        """What the agent said to its standard error."""
        return (self.home / "agent.log").read_text()

    def client(self, epoch: int = 1) -> AgentClient:
        """A new connection that has not attached."""
        self.clients.append(AgentClient(address_of(self.home), epoch))
        return self.clients[-1]

    def attached(self, epoch: int = 1) -> AgentClient:
        """A new connection that has attached."""
        client = self.client(epoch)
        assert client.attach()["ev"] == "attached"
        return client


StartAgent = Callable[..., HandMadeWorker]


@pytest.fixture
def start_agent(runtime_dir: Path, nobody_left: None) -> Iterator[StartAgent]:
    """Start agents by hand, from a payload of the test's own; they are asked to leave with the test."""
    started: list[HandMadeWorker] = []

    def start(
        python: str = sys.executable,
        faults: Mapping[str, str] = MappingProxyType({}),
        open_files: int = 1024,
        most_open_files: int | None = None,
        **changes: Any,
    ) -> HandMadeWorker:
        """`faults`: by module of the worker's part, code that is put at its end.

        `open_files` is the limit of descriptors, `most_open_files` the hard one where that is another.
        """
        name = f"w{len(started)}"
        payload = shutil.copytree(payload_directory(runtime_dir), runtime_dir / f"{name}-payload")
        for path, code in faults.items():
            with (payload / "prefect_ft" / "worker" / path).open("a") as module:
                module.write(f"\n{code}\n")
        config = write_agent_config(runtime_dir / name, **changes)
        words = [python, "-I", "-S", str(payload), str(config)]
        with (runtime_dir / name / "agent.log").open("ab") as log, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(runtime_dir / name / "agent.sock"))
            listener.listen()
            process = subprocess.Popen(
                [
                    "sh",
                    "-c",
                    f'ulimit -Sn {open_files}; ulimit -Hn {most_open_files or open_files}; exec "$@"',
                    "sh",
                    *words,
                    "--fd",
                    str(listener.fileno()),
                ],
                pass_fds=(listener.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        started.append(HandMadeWorker(runtime_dir / name, process, []))
        return started[-1]

    yield start
    for agent in started:
        agent.process.terminate()
        assert agent.process.wait(timeout=30) in (0, -signal.SIGKILL)
        for client in agent.clients:
            client.close()
