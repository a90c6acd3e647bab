"""Creates a worker's container with its directory and waits until its agent listens."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from docker.errors import APIError, DockerException
from requests.exceptions import RequestException

from prefect_ft.backends.base import AgentSettings, Worker
from prefect_ft.backends.docker import elsewhere, engine
from prefect_ft.backends.docker.config import DockerInfrastructure
from prefect_ft.backends.docker.containers import Containers
from prefect_ft.backends.docker.engines import Engines
from prefect_ft.backends.docker.evidence import evidence_of
from prefect_ft.backends.docker.request import Mounted, create_request
from prefect_ft.backends.home import SOCKET, write_agent_config, write_host
from prefect_ft.errors import BackendError

AGENT_TIMEOUT_S = 60.0
"""How long a container's agent may take until it listens."""

LOOK_S = 0.25
"""How often to check whether a container has ended while waiting for its agent."""

POLL_S = 0.002

LAST_WORDS = 20
"""Lines of the log of an agent that did not start."""


class Creation:
    """Creates the containers of one phase. `binds` and `private` are as in `Mounted`."""

    def __init__(
        self,
        settings: AgentSettings,
        infrastructure: DockerInfrastructure,
        engines: Engines,
        containers: Containers,
        *,
        binds: Sequence[str],
        private: Path | None,
    ) -> None:
        self._settings, self._infrastructure = settings, infrastructure
        self._engines, self._containers = engines, containers
        self._binds = tuple(binds)
        self._private = None if private is None else str(private)

    def create(self, client: engine.Client, worker: Worker, python: engine.Interpreter) -> None:
        """Create a worker that does not exist, and wait for its agent; raises BackendError."""
        name, home = self._containers.name(worker), self._containers.home(worker)
        self._make_home(worker, python)
        mounted, copied = self._mounted(worker)
        request = create_request(
            self._infrastructure,
            self._engines.system(worker.system),
            self._containers.labels(worker),
            python=python.name,
            mounted=mounted,
        )
        client.create_container_from_config(request, name)
        if mounted.is_copied:
            elsewhere.copy_in(client, name, copied, python)
        client.start(name)
        self._await_agent(client, worker, python)
        write_host(home, self._containers.host(client, worker))

    def _make_home(self, worker: Worker, python: engine.Interpreter) -> None:
        """Make a worker's directory, owned by the user that its agent runs as, unless that is root."""
        home = self._containers.home(worker)
        (home / "io").mkdir(mode=0o700, parents=True)
        config = write_agent_config(home, self._settings, worker)
        if python.uid in (0, os.getuid()) or not self._engines.is_here(worker.system):
            return
        try:
            for path in (home, home / "io", config):
                os.chown(path, python.uid, python.gid)
        except PermissionError as exc:
            message = (
                f'its containers run as user {python.uid}: if you are not root, set user: "{os.getuid()}"'
            )
            raise BackendError(message, system=worker.system) from exc

    def _mounted(self, worker: Worker) -> tuple[Mounted, list[Path]]:
        """Return a worker's mounts, and what is copied in where the engine is elsewhere.

        Directories that a phase needs are mounted in either case: then they are the engine machine's.
        """
        home, payload = self._containers.home(worker), self._containers.payload()
        if self._engines.is_here(worker.system):
            return Mounted(home=str(home), payload=str(payload), binds=self._binds, private=self._private), []
        files = [bind for bind in self._binds if Path(bind.partition(":")[0]).is_file()]
        binds = [bind for bind in self._binds if bind not in files]
        copied = [home, payload, *(Path(bind.partition(":")[0]) for bind in files)]
        return Mounted(home=str(home), payload=str(payload), binds=binds, is_copied=True), copied

    def _await_agent(self, client: engine.Client, worker: Worker, python: engine.Interpreter) -> None:
        """Wait until an agent listens; raises BackendError with the end of its log if it does not."""
        name, path = self._containers.name(worker), self._containers.home(worker) / SOCKET
        if not self._engines.is_here(worker.system):
            words = [*self._containers.relay(python), str(path), f"{AGENT_TIMEOUT_S:g}"]
            with suppress(APIError):  # it has ended already
                if elsewhere.listens(client, name, words):
                    return
            raise BackendError(self._why_not(client, worker), system=worker.system)
        deadline = time.monotonic() + AGENT_TIMEOUT_S
        look_at = time.monotonic() + LOOK_S
        while not path.exists():
            now = time.monotonic()
            if now > look_at:
                look_at = now + LOOK_S
                container = engine.inspect(client, name)
                if container is None or not container["State"]["Running"] or now > deadline:
                    raise BackendError(self._why_not(client, worker), system=worker.system)
            time.sleep(POLL_S)

    def _why_not(self, client: engine.Client, worker: Worker) -> str:
        """Return why an agent did not start."""
        name, words = self._containers.name(worker), ""
        with suppress(DockerException, RequestException):
            words = client.logs(name, tail=LAST_WORDS).decode(errors="replace").strip()
        evidence = evidence_of(self._engines, worker.system, name, is_gone=True)
        how = evidence.text if evidence is not None else "it does not listen"
        return f"the agent of worker {worker.number} did not begin: {how}" + (f": {words}" if words else "")
