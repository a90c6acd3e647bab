"""Workers as process groups on this machine: each an agent in a session and a directory of its own.

A worker's directory (output, heartbeats, the ranks' TMPDIR) lives as long as the worker: a restart in
place keeps it, a rebuild starts with a new one. All systems are this machine under different names; one of
them can be made to die as a machine does (`take_down`), to see what a run does about it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from prefect_ft.backends.agent_process import AgentProcess, process_of
from prefect_ft.backends.base import Address, AgentSettings, Found, Worker
from prefect_ft.backends.payload import payload_directory
from prefect_ft.backends.scope import agent_prefix
from prefect_ft.errors import BackendError
from prefect_ft.files import read_json
from prefect_ft.worker.agent import LEFT
from prefect_ft.worker.gang import KILL_TIMEOUT_S
from prefect_ft.worker.processes import descendants, kill_and_wait, parent

SOCKET = "agent.sock"

DOWN = "down"
"""The directory, in a run's, of what systems have been taken down."""

LEAVE_TIMEOUT_S = KILL_TIMEOUT_S + 5.0
"""How long an agent may take to end its ranks and itself before it is killed."""

KILLED_TIMEOUT_S = 5.0
"""How long is waited for what was killed; what sits in the kernel then is left to it."""

LAST_WORDS_BYTES = 4000
"""How much of what a dead agent said goes into the log."""

_log = logging.getLogger(__name__)


class ProcessBackend:
    """`directory` is the run's own, on a local disk and short enough for socket paths (107 bytes)."""

    def __init__(
        self,
        settings: AgentSettings,
        directory: Path,
        system_env: Mapping[str, Mapping[str, str]],
        system_locks: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        """`system_env` completes the environment of the workers on a system.

        `system_locks` are files of which a system's agents hold a shared lock for as long as they live.
        """
        self._settings = settings
        self._directory = directory.absolute()
        self._system_env = system_env
        self._system_locks = system_locks
        self._agents: dict[Worker, subprocess.Popen[bytes]] = {}

    def create(self, workers: Sequence[Worker]) -> list[Address]:
        """Create these workers, in their order; raises BackendError with none of them left behind.

        A worker that is there already, with its agent alive, stays as it is.
        """
        try:
            return [self._create(worker) for worker in workers]
        except BackendError:
            self.destroy(workers)
            raise
        except (OSError, ValueError) as exc:
            self.destroy(workers)
            raise BackendError(f"a worker cannot be started: {exc}") from exc

    def _create(self, worker: Worker) -> Address:
        home = self._home(worker)
        address = _address(home)
        if worker in self._agents and self._agents[worker].poll() is None:
            return address
        if not self.answers(worker.system):
            raise BackendError(f"system {worker.system} is down", system=worker.system)
        self.destroy([worker])  # what another life of the orchestrator may have left under this name
        (home / "tmp").mkdir(mode=0o700, parents=True)
        config = home / "agent.json"
        config.touch(mode=0o600)
        config.write_text(json.dumps(self._agent_config(worker)))
        # Listening before the agent lives spares waiting for it: it serves as soon as it is up.
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
                    **self._system_env.get(worker.system, {}),
                },
                pass_fds=(listener.fileno(),),
                start_new_session=True,
            )

    def _agent_config(self, worker: Worker) -> dict[str, object]:
        settings = self._settings
        return {
            "run": settings.run_id,
            "key": settings.key,
            "worker": worker.number,
            "system": worker.system,
            "directory": str(self._home(worker)),
            "socket": str(self._home(worker) / SOCKET),
            "sample_period_s": settings.sample_period_s,
            "orphan_timeout_s": settings.orphan_timeout_s,
            "spool_bytes": settings.spool_bytes,
            "output": settings.output,
            "signs": list(settings.signs),
            "checkpoints": settings.checkpoints if worker.number == 0 else None,
            "system_lock": str(lock) if (lock := self._system_locks.get(worker.system)) else None,
        }

    def destroy(self, workers: Sequence[Worker]) -> None:
        """End these workers and everything that runs in them, and remove what they kept."""
        agents = {
            worker: process_of(self._home(worker), self._agents.pop(worker, None))
            for worker in dict.fromkeys(workers)
        }
        for agent in agents.values():
            if agent is not None:
                # It ends whatever runs below it, then itself; one that somebody stopped hears it too.
                agent.send(signal.SIGTERM, signal.SIGCONT)
        deadline = time.monotonic() + LEAVE_TIMEOUT_S
        for worker, agent in agents.items():
            home = self._home(worker)
            if agent is not None:
                _await_end(agent, deadline)
            if not home.exists():
                continue
            if agent is None or (home / SOCKET).exists():  # an agent that leaves in peace takes it along
                _end_strays(home)
                _tell_last_words(worker, home)
            shutil.rmtree(home, ignore_errors=True)

    def find(self) -> list[Found]:
        """Give the phase's workers, those of all lives of the orchestrator, by what they left where they are.

        In the order of epoch and decision.
        """
        found = [self._found(home) for home in self._directory.glob(f"{self._settings.phase_index}-*-*-*")]
        return sorted(found, key=lambda each: (each.worker.epoch, each.worker.decision, each.worker.number))

    def _found(self, home: Path) -> Found:
        _, number, epoch, decision = map(int, home.name.split("-"))
        system = read_json(home / "agent.json").get("system", "")
        worker = Worker(number=number, system=system, epoch=epoch, decision=decision)
        return Found(worker=worker, address=_address(home), result=read_json(home / LEFT) or None)

    def answers(self, system: str) -> bool:
        """Whether the system itself is there, whatever became of the workers on it."""
        return not (self._directory / DOWN / system).exists()

    def _home(self, worker: Worker) -> Path:
        name = f"{self._settings.phase_index}-{worker.number}-{worker.epoch}-{worker.decision}"
        return self._directory / name


def _address(home: Path) -> Address:
    return Address(socket_path=home / SOCKET, host="127.0.0.1")


def _await_end(agent: AgentProcess, deadline_s: float) -> None:
    """Wait for an agent that was asked to leave, and end one that does not."""
    if not agent.ends(deadline_s - time.monotonic()):
        agent.send(signal.SIGKILL)
        agent.ends(KILLED_TIMEOUT_S)
    agent.close()


def take_down(directory: Path, system: str) -> None:
    """Let a system of a run die: all that runs there is killed at once, and nothing starts there any more.

    `directory` is the run's run-time directory. Once the marker in `DOWN` is removed the system is back.
    """
    (directory / DOWN).mkdir(exist_ok=True)
    (directory / DOWN / system).touch()
    for config in directory.glob("*-*-*-*/agent.json"):
        if read_json(config).get("system") == system:
            _end_strays(config.parent)


def clear_directory(directory: Path) -> None:
    """End what is left of a run's workers, whoever's they were, and remove its run-time directory.

    Also where somebody has removed it already, with the workers' sockets in it.
    """
    _end_strays(directory)
    shutil.rmtree(directory, ignore_errors=True)


def inherited_environment() -> dict[str, str]:
    """Give this process's environment without what belongs to its own Prefect run."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}


def _end_strays(home: Path) -> None:
    """SIGKILL what outlived an agent, and an agent that is nobody's child any more."""
    deadline = time.monotonic() + KILLED_TIMEOUT_S
    while (found := list(_strays(home))) and (left_s := deadline - time.monotonic()) > 0:
        family = {process for stray in found for process in (stray, *descendants(stray))} - {os.getpid()}
        kill_and_wait(
            sorted(family),  # the agent first: it started the others, and must not tell of their ends
            lambda pid, family=family: _belongs(pid, home) or parent(pid) in family,  # type: ignore[misc]
            left_s,
        )


def _strays(home: Path) -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and _belongs(int(name), home):
            yield int(name)


def _belongs(pid: int, home: Path) -> bool:
    """Whether a living process is of the worker with this directory.

    Then it was given a place in it, or writes into it. Only to read from it (`tail -f`) or to stand in
    it makes nobody a stray.
    """
    inside = os.fsencode(home) + b"/"
    with suppress(OSError):  # gone, or another user's
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if any(
            item.startswith((b"TMPDIR=" + inside, b"PREFECT_FT_HEARTBEAT=" + inside)) for item in environment
        ):
            return True
        return any(
            os.fsencode(os.readlink(link)).startswith(inside) and _is_written_to(pid, link.name)
            for link in Path(f"/proc/{pid}/fd").iterdir()
        )
    return False


def _is_written_to(pid: int, descriptor: str) -> bool:
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines()
    )
    return int(fields["flags"], 8) & os.O_ACCMODE != os.O_RDONLY


def _tell_last_words(worker: Worker, home: Path) -> None:
    """Put what a dead agent said into the log, before its directory goes."""
    with suppress(OSError):
        said = (home / "agent.log").read_bytes()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
        if said:
            _log.warning("the agent of worker %d on %s said: %s", worker.number, worker.system, said)


def visible_accelerators(env: Mapping[str, str]) -> int:
    """Count the accelerators that a process with this environment sees; 0 if there are none.

    Variables as CUDA, ROCm and CANN document them; device files as their drivers make them.
    """
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        if name in env:
            return len([device for device in env[name].split(",") if device.strip() not in ("", "-1")])
    files = [path.name for path in Path("/dev").iterdir()]
    return max(
        len([name for name in files if name.startswith(prefix) and name.removeprefix(prefix).isdigit()])
        for prefix in ("nvidia", "davinci")
    )
