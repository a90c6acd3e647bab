"""Workers as process groups on this machine: each an agent in a session and a directory of its own.

A worker's directory (output, heartbeats, the ranks' TMPDIR) lives as long as the worker: a restart in
place keeps it, a rebuild starts with a new one. All systems are this machine under different names.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from prefect_ft.backends.base import Address, AgentSettings, Worker
from prefect_ft.backends.payload import payload_directory
from prefect_ft.errors import BackendError

LEAVE_TIMEOUT_S = 5.0
"""How long an agent may take to end its ranks and itself before it is killed."""


class ProcessBackend:
    """`directory` is the run's own, on a local disk and short enough for socket paths (107 bytes)."""

    def __init__(
        self, settings: AgentSettings, directory: Path, system_env: Mapping[str, Mapping[str, str]]
    ) -> None:
        """`system_env` completes the environment of the workers on a system."""
        self._settings = settings
        self._directory = directory
        self._system_env = system_env
        self._agents: dict[Worker, subprocess.Popen[bytes]] = {}

    def create(self, workers: Sequence[Worker]) -> list[Address]:
        """Create these workers, in their order; raises BackendError with none of them left behind."""
        try:
            return [self._create(worker) for worker in workers]
        except OSError as exc:
            self.destroy(workers)
            raise BackendError(f"a worker cannot be started: {exc}") from exc

    def _create(self, worker: Worker) -> Address:
        home = self._home(worker)
        (home / "tmp").mkdir(mode=0o700, parents=True)
        config = home / "agent.json"
        config.touch(mode=0o600)
        config.write_text(json.dumps(self._agent_config(worker)))
        path = home / "agent.sock"
        # Listening before the agent lives spares waiting for it: whoever connects is served as soon as it is up.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, (home / "agent.log").open("ab") as log:
            listener.bind(str(path))
            listener.listen()
            payload = payload_directory(self._directory.parent)
            self._agents[worker] = subprocess.Popen(
                [sys.executable, "-I", "-S", str(payload), str(config), "--fd", str(listener.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={"TMPDIR": str(home / "tmp"), **_inherited(), **self._system_env.get(worker.system, {})},
                pass_fds=(listener.fileno(),),
                start_new_session=True,
            )
        return Address(socket_path=path, host="127.0.0.1")

    def _agent_config(self, worker: Worker) -> dict[str, object]:
        settings = self._settings
        return {
            "run": settings.run_id,
            "key": settings.key,
            "worker": worker.number,
            "system": worker.system,
            "directory": str(self._home(worker)),
            "socket": str(self._home(worker) / "agent.sock"),
            "sample_period_s": settings.sample_period_s,
            "orphan_timeout_s": settings.orphan_timeout_s,
            "spool_bytes": settings.spool_bytes,
            "checkpoints": settings.checkpoints if worker.number == 0 else None,
        }

    def destroy(self, workers: Sequence[Worker]) -> None:
        """End these workers and everything that runs in them, and remove what they kept."""
        agents = {worker: self._agents.pop(worker, None) for worker in workers}
        for agent in agents.values():
            if agent is not None:
                agent.terminate()  # it ends whatever runs below it, then itself
        for worker, agent in agents.items():
            if agent is None or not _has_left(agent):
                _end_strays(self._home(worker))
            shutil.rmtree(self._home(worker), ignore_errors=True)

    def answers(self, system: str) -> bool:  # noqa: ARG002  (every system is this machine)
        """Whether the system itself is there, whatever became of the workers on it."""
        return True

    def _home(self, worker: Worker) -> Path:
        return self._directory / f"{self._settings.phase_index}-{worker.number}-{worker.incarnation}"


def _inherited() -> dict[str, str]:
    """This process's environment without what belongs to its own Prefect run or its own TMPDIR."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}


def _has_left(agent: subprocess.Popen[bytes]) -> bool:
    """Wait for an agent that was asked to leave; end one that does not, and say whether it left by itself."""
    handle = os.pidfd_open(agent.pid)  # not yet waited for, so the pid is still its own
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        left = bool(poll.poll(1000 * LEAVE_TIMEOUT_S))
    finally:
        os.close(handle)
    if not left:
        agent.kill()
    return agent.wait() == 0


def _end_strays(home: Path) -> None:
    """SIGKILL the ranks that outlived their agent: they carry its directory in their environment."""
    strays = [process for process in psutil.process_iter() if _heartbeat_directory(process) == str(home / "io")]
    for process in strays:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(strays, timeout=LEAVE_TIMEOUT_S)


def _heartbeat_directory(process: psutil.Process) -> str | None:
    try:
        return os.path.dirname(process.environ().get("PREFECT_FT_HEARTBEAT", ""))
    except (psutil.Error, OSError):
        return None


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
