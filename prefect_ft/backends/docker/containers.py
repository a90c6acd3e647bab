"""The containers of one phase's workers: their names, directories and labels, and how their agents are reached."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect_ft.backends.base import Address, AgentSettings, Found, Worker
from prefect_ft.backends.docker import elsewhere, engine
from prefect_ft.backends.docker.engines import Engines
from prefect_ft.backends.docker.request import LABELS
from prefect_ft.backends.docker.transport import host_of
from prefect_ft.backends.home import SOCKET, address_of, home_of
from prefect_ft.backends.labels import name_of
from prefect_ft.backends.payload import payload_directory
from prefect_ft.errors import BackendError
from prefect_ft.worker.agent import LEFT


class Containers:
    """`directory` is the run's run-time directory."""

    def __init__(self, settings: AgentSettings, directory: Path, engines: Engines) -> None:
        self._run_id, self._phase_index = settings.run_id, settings.phase_index
        self._directory, self._engines = directory, engines

    def name(self, worker: Worker) -> str:
        """Return the name of a worker's container."""
        return name_of(self._run_id, self._phase_index, worker)

    def labels(self, worker: Worker) -> Mapping[str, str]:
        """Return the labels of a worker's container."""
        return LABELS.of(self._run_id, self._phase_index, worker)

    def home(self, worker: Worker) -> Path:
        """Return a worker's directory, which has the same path here and in its container."""
        return home_of(self._directory, self._phase_index, worker)

    def payload(self) -> Path:
        """Return the directory of the agents' code."""
        return payload_directory(self._directory.parent)

    def relay(self, python: engine.Interpreter) -> tuple[str, ...]:
        """Return the command that relays an agent's socket, in its container."""
        return elsewhere.relay_words(python, self.payload())

    def address(self, worker: Worker, python: engine.Interpreter) -> Address:
        """Return the address of a worker's agent."""
        here = address_of(self.home(worker))
        if self._engines.is_here(worker.system):
            return here
        return elsewhere.AddressElsewhere(
            socket_path=here.socket_path,
            host=here.host,
            engine=lambda: engine.connect(self._engines.url(worker.system)),
            container=self.name(worker),
            relay=self.relay(python),
        )

    def host(self, client: engine.Client, worker: Worker) -> str:
        """Return the address by which other workers reach a container; on the host's network, the host's."""
        container = engine.inspect(client, self.name(worker)) or {}
        url = self._engines.url(worker.system)
        machine = "127.0.0.1" if self._engines.is_here(worker.system) else host_of(url)
        networks = container.get("NetworkSettings", {}).get("Networks", {}).values()
        return next((each["IPAddress"] for each in networks if each.get("IPAddress")), machine)

    def is_alive(self, client: engine.Client, worker: Worker) -> bool:
        """Whether a worker's container runs, with an agent that listens as far as its files show."""
        container = engine.inspect(client, self.name(worker))
        listens = not self._engines.is_here(worker.system) or (self.home(worker) / SOCKET).exists()
        return container is not None and container["State"]["Running"] and listens

    def labelled(self) -> list[Worker]:
        """Return the workers whose containers the engines list; an engine that is down adds nothing."""
        wanted = [f"{LABELS.run}={self._run_id}", f"{LABELS.phase}={self._phase_index}"]
        found: list[Worker | None] = []
        for system in self._engines.systems:
            with suppress(BackendError):
                with self._engines.client(system) as client:
                    containers = client.containers(all=True, filters={"label": wanted})
                found += [LABELS.worker(each["Labels"]) for each in containers]
        return [worker for worker in dict.fromkeys(found) if worker is not None]

    def left_in(self, client: engine.Client, worker: Worker) -> Mapping[str, Any] | None:
        """Return the result that an agent has left in its container; None: there is none."""
        return elsewhere.read_there(client, self.name(worker), self.home(worker) / LEFT)

    def without_home(self, worker: Worker) -> Found:
        """Return a worker that has no directory here."""
        return Found(worker=worker, address=address_of(self.home(worker)), result=None)
