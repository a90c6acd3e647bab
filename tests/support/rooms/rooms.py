"""A kind of infrastructure from outside the package: each system is a room, a directory of this machine.

What an installed package may write that adds a backend; it touches no file of prefect_ft's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from prefect_ft.backends.base import Address, Backend, Found, Worker
from prefect_ft.backends.home import address_of, found_in, home_of, write_agent_config
from prefect_ft.backends.host import inherited_environment
from prefect_ft.backends.kind import Kind, Workers
from prefect_ft.backends.payload import payload_directory
from prefect_ft.backends.strays import end_strays
from prefect_ft.config import Infrastructure, System
from prefect_ft.config.fields import Directory, absolute, given_in
from prefect_ft.errors import BackendError, ConfigError
from prefect_ft.model import Evidence

STARTED_TIMEOUT_S = 30.0


class Rooms(Infrastructure):
    """Workers are groups of processes, each in a room of its own."""

    type: Literal["rooms"] = Field(description="What the workers are")
    house: Directory = Field(description="Directory that has the rooms", examples=["house"])
    systems: tuple[System, ...] = Field(description="The rooms")

    ranks_are_here: ClassVar[bool] = True
    shares_files: ClassVar[bool] = True

    def keeps(self, path: str) -> bool:
        return True

    def mounts(self, path: str) -> bool:
        return False

    def refusal_of_ranks(self, ranks: int) -> str | None:
        return "must be at most 2, a room has no more chairs" if ranks > 2 else None

    def lost_ranks_last_s(self) -> float | None:
        return None

    def at(self, base: str) -> Rooms:
        return self.model_copy(update={"house": absolute(self.house, base)})


class RoomsBackend:
    """Starts agents in rooms."""

    def __init__(self, workers: Workers[Rooms]) -> None:
        self._of = workers
        self._agents: dict[Worker, subprocess.Popen[bytes]] = {}

    def create(self, workers: Sequence[Worker]) -> list[Address]:
        try:
            return [self._create(worker) for worker in workers]
        except (OSError, BackendError) as exc:
            self.destroy(workers)
            raise BackendError(str(exc)) from exc

    def _create(self, worker: Worker) -> Address:
        home = self._home(worker)
        if worker in self._agents and self._agents[worker].poll() is None:
            return address_of(home)
        self.destroy([worker])
        (home / "tmp").mkdir(mode=0o700, parents=True)
        config = write_agent_config(home, self._of.settings, worker)
        room = Path(self._of.infrastructure.house, worker.system)
        room.mkdir(parents=True, exist_ok=True)
        self._agents[worker] = subprocess.Popen(
            [sys.executable, "-I", "-S", str(payload_directory(self._of.directory.parent)), str(config)],
            stdin=subprocess.DEVNULL,
            cwd=room,
            env={
                **inherited_environment(),
                "TMPDIR": str(home / "tmp"),
                **given_in(self._of.system_env.get(worker.system, {})),
            },
            start_new_session=True,
        )
        return self._answering(worker, address_of(home))

    def _answering(self, worker: Worker, address: Address) -> Address:
        deadline = time.monotonic() + STARTED_TIMEOUT_S
        while not address.socket_path.exists():
            if self._agents[worker].poll() is not None or time.monotonic() > deadline:
                raise BackendError(f"no agent came up in {worker.system}", system=worker.system)
            time.sleep(0.005)
        return address

    def destroy(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            agent = self._agents.pop(worker, None)
            if agent is not None:
                agent.kill()
                agent.wait()
            home = self._home(worker)
            if home.exists():
                end_strays(home)
                shutil.rmtree(home, ignore_errors=True)

    def exchange(self, old: Sequence[Worker], new: Sequence[Worker]) -> list[Address]:
        self.destroy(old)
        return self.create(new)

    def find(self) -> list[Found]:
        return found_in(self._of.directory, self._of.settings.phase_index)

    def answers(self, system: str) -> bool:
        return True

    def evidence(self, worker: Worker, *, is_gone: bool) -> Evidence | None:
        return None

    def close(self) -> None:
        pass

    def _home(self, worker: Worker) -> Path:
        return home_of(self._of.directory, self._of.settings.phase_index, worker)


class RoomsKind(Kind[Rooms]):
    config = Rooms

    def check(self, infrastructure: Rooms, field: str) -> None:
        if os.path.isfile(infrastructure.house):
            raise ConfigError(f"{infrastructure.house} is a file", field=f"{field}.house")

    def ranks_per_worker(self, infrastructure: Rooms, env: Mapping[str, str | None]) -> int:
        return 1

    def backend(self, workers: Workers[Rooms]) -> Backend:
        return RoomsBackend(workers)

    def clear(self, directory: Path) -> None:
        pass


KIND = RoomsKind()
