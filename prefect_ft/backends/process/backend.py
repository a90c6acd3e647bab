"""Workers as process groups on this machine: each an agent in a session and a directory of its own.

A worker's directory (output, heartbeats, the ranks' TMPDIR) lives as long as the worker: a restart in
place keeps it, a rebuild starts with a new one. All systems are this machine under different names;
`take_down` makes one fail as a machine does, to test what a run does about it.
"""

from __future__ import annotations

import logging
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from prefect_ft.backends.base import Address, AgentSettings, Found, Worker
from prefect_ft.backends.home import SOCKET, found_in, home_of, write_agent_config
from prefect_ft.backends.host import inherited_environment
from prefect_ft.backends.payload import payload_directory
from prefect_ft.backends.process.agent_process import AgentProcess, process_of
from prefect_ft.backends.process.scope import agent_prefix
from prefect_ft.backends.strays import KILLED_TIMEOUT_S, end_strays
from prefect_ft.config import given_in
from prefect_ft.errors import BackendError
from prefect_ft.files import read_json
from prefect_ft.model import Evidence
from prefect_ft.plaintext import as_line, as_lines
from prefect_ft.worker.gang import KILL_TIMEOUT_S

DOWN = "down"
"""The subdirectory of a run's directory with a marker for each system that was taken down."""

LEAVE_TIMEOUT_S = KILL_TIMEOUT_S + 5.0
"""How long an agent may take to end its ranks and exit before it is killed."""

LAST_WORDS_BYTES = 4000
"""How much of a dead agent's output goes into the log."""

_log = logging.getLogger(__name__)


class ProcessBackend:
    """`directory` is the run's own, on a local disk and short enough for socket paths (107 bytes)."""

    def __init__(
        self,
        settings: AgentSettings,
        directory: Path,
        system_env: Mapping[str, Mapping[str, str | None]],
        system_locks: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        """`system_env` completes the environment of the workers on a system.

        `system_locks` are files on which a system's agents hold a shared lock while they run.
        """
        self._settings = settings
        self._directory = directory.absolute()
        self._system_env = system_env
        self._system_locks = system_locks
        self._agents: dict[Worker, subprocess.Popen[bytes]] = {}

    def create(self, workers: Sequence[Worker]) -> list[Address]:
        """Create these workers, in their order; raises BackendError with none of them left behind.

        Keeps a worker that exists already with a live agent.
        """
        try:
            return [self._create(worker) for worker in workers]
        except BackendError:
            self.destroy(workers)
            raise
        except (OSError, ValueError) as exc:
            self.destroy(workers)
            # All systems are this machine: on another one it would fail as well.
            raise BackendError(f"a worker cannot be started: {exc}", on_any_system=True) from exc

    def _create(self, worker: Worker) -> Address:
        home = self._home(worker)
        address = Address(socket_path=home / SOCKET, host="127.0.0.1")
        if worker in self._agents and self._agents[worker].poll() is None:
            return address
        if not self.answers(worker.system):
            raise BackendError(f"system {worker.system} is down", system=worker.system)
        self.destroy([worker])  # what an earlier orchestrator may have left under this name
        (home / "tmp").mkdir(mode=0o700, parents=True)
        lock = self._system_locks.get(worker.system)
        config = write_agent_config(home, self._settings, worker, system_lock=lock)
        # Listening before the agent starts saves waiting for it: it serves as soon as it is up.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(address.socket_path))
            listener.listen()
            self._agents[worker] = self._start_agent(worker, config, listener)
        return address

    def _start_agent(self, worker: Worker, config: Path, listener: socket.socket) -> subprocess.Popen[bytes]:
        home = config.parent
        payload = payload_directory(self._directory.parent)
        with (home / "agent.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *agent_prefix(),
                    *(sys.executable, "-I", "-S", str(payload), str(config), "--fd", str(listener.fileno())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={
                    **inherited_environment(),
                    "TMPDIR": str(home / "tmp"),
                    **given_in(self._system_env.get(worker.system, {})),
                },
                pass_fds=(listener.fileno(),),
                start_new_session=True,
            )

    def destroy(self, workers: Sequence[Worker]) -> None:
        """End these workers and everything that runs in them, and remove their files."""
        agents = {
            worker: process_of(self._home(worker), self._agents.pop(worker, None))
            for worker in dict.fromkeys(workers)
        }
        for agent in agents.values():
            if agent is not None:
                # It ends whatever runs below it, then itself; SIGCONT wakes one that was stopped.
                agent.send(signal.SIGTERM, signal.SIGCONT)
        deadline = time.monotonic() + LEAVE_TIMEOUT_S
        for worker, agent in agents.items():
            home = self._home(worker)
            if agent is not None:
                _await_end(agent, deadline)
            if not home.exists():
                continue
            if agent is None or (home / SOCKET).exists():  # an agent that exits normally removes it
                end_strays(home)
                _log_last_words(worker, home)
            shutil.rmtree(home, ignore_errors=True)

    def exchange(self, old: Sequence[Worker], new: Sequence[Worker]) -> list[Address]:
        """Destroy, then create: old workers may hold what the new ones need."""
        self.destroy(old)
        return self.create(new)

    def find(self) -> list[Found]:
        """Return the phase's workers, also those of earlier orchestrators, by their directories.

        In the order of epoch and decision.
        """
        return found_in(self._directory, self._settings.phase_index)

    def answers(self, system: str) -> bool:
        """Whether the system itself responds, whatever the state of its workers."""
        return not (self._directory / DOWN / system).exists()

    def evidence(self, worker: Worker, *, is_gone: bool) -> Evidence | None:
        """Return what is known about what just ended in a worker: nothing but what its agent reports."""
        del worker, is_gone
        return None

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _home(self, worker: Worker) -> Path:
        return home_of(self._directory, self._settings.phase_index, worker)


def _await_end(agent: AgentProcess, deadline_s: float) -> None:
    """Wait for an agent that was asked to exit, and kill one that does not."""
    if not agent.ends(deadline_s - time.monotonic()):
        agent.send(signal.SIGKILL)
        agent.ends(KILLED_TIMEOUT_S)
    agent.close()


def take_down(directory: Path, system: str) -> None:
    """Make a system of a run fail: kill everything that runs there, and let nothing start there any more.

    `directory` is the run's run-time directory. Removing the marker in `DOWN` brings the system back.
    """
    (directory / DOWN).mkdir(exist_ok=True)
    (directory / DOWN / system).touch()
    for config in directory.glob("*-*-*-*/agent.json"):
        if read_json(config).get("system") == system:
            end_strays(config.parent)


def _log_last_words(worker: Worker, home: Path) -> None:
    """Log the end of a dead agent's output before its directory is removed."""
    with suppress(OSError):
        last_words = (home / "agent.log").read_bytes()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
        if last_words:
            where = as_line(worker.system)
            _log.warning("the agent of worker %d on %s said: %s", worker.number, where, as_lines(last_words))
