"""Workers as containers of Docker engines, each with its agent as PID 1.

A worker's directory is mounted into its container only: so the agent's socket is reached without the engine,
and training survives it. Where the engine is elsewhere the directory is copied in, and the agent reached
through the engine. A run's containers are found by their labels.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from docker.errors import APIError, DockerException
from requests.exceptions import RequestException

from prefect_ft.backends.base import (
    USED_UP,
    Address,
    AgentSettings,
    Found,
    Worker,
    exchange_side_by_side,
)
from prefect_ft.backends.docker import elsewhere, engine
from prefect_ft.backends.docker.config import DockerInfrastructure
from prefect_ft.backends.docker.kept import ENGINES
from prefect_ft.backends.docker.request import (
    LABELS,
    Mounted,
    create_request,
)
from prefect_ft.backends.docker.transport import host_of, is_here
from prefect_ft.backends.home import (
    SOCKET,
    address_of,
    found_in,
    home_of,
    write_agent_config,
    write_host,
)
from prefect_ft.backends.labels import name_of
from prefect_ft.backends.payload import payload_directory
from prefect_ft.backends.strays import end_strays
from prefect_ft.errors import BackendError
from prefect_ft.files import read_json, write_json
from prefect_ft.model import Evidence
from prefect_ft.worker.agent import LEFT

AGENT_TIMEOUT_S = 60.0
"""How long a container's agent may take until it listens."""

LOOK_S = 0.25
"""How often to check whether a container has ended while waiting for its agent."""

POLL_S = 0.002
LAST_WORDS = 20
"""Lines of the log of an agent that did not start."""

NOTICE_TIMEOUT_S = 2.0
"""How long an engine may take to notice that a container's first process has ended."""

OOM_WINDOW_S = 30.0
"""How long ago a container may have run out of memory for that to explain a rank's death now."""

_log = logging.getLogger(__name__)


class DockerBackend:
    """`directory` is the run's run-time directory, on a local disk and short enough for socket paths."""

    def __init__(
        self,
        settings: AgentSettings,
        directory: Path,
        infrastructure: DockerInfrastructure,
        *,
        binds: Sequence[str] = (),
        private: Path | None = None,
        removal_grace_s: float | None = None,
    ) -> None:
        """`binds` are mounted beside the user's volumes, as HOST:CONTAINER[:ro].

        `private` is a directory hidden from containers, also from those that mount a parent of it.

        `removal_grace_s`: how long `destroy` waits before it continues in the background; None: to its end.
        """
        self._settings = settings
        self._directory = directory.absolute()
        self._infrastructure = infrastructure
        self._systems = {system.name: system for system in infrastructure.systems}
        self._binds = tuple(binds)
        self._private = None if private is None else str(private)
        self._removal_grace_s = removal_grace_s

    # -- creating ---------------------------------------------------------------------------------

    def create(self, workers: Sequence[Worker]) -> list[Address]:
        """Create these workers, in their order; raises BackendError with none of them left behind.

        Keeps a worker that exists already with a live agent.
        """
        if not workers:
            return []
        self._note_engines()
        try:
            pythons = self._interpreters(workers)
            with ThreadPoolExecutor(len(workers)) as pool:
                return list(pool.map(self._create, workers, pythons))
        except BackendError:
            self.destroy(workers)
            raise
        except OSError as exc:
            self.destroy(workers)
            raise BackendError(f"a worker cannot be started: {exc}") from exc

    def _create(self, worker: Worker, found: engine.Interpreter) -> Address:
        home, name = self._home(worker), self._name(worker)
        with self._engine(worker.system) as client:
            if self._is_alive(client, worker):
                return self._address(worker, found)
            self._remove(worker)  # what an earlier orchestrator may have left under this name
            self._make_home(worker, found)
            mounted, copied = self._mounted(worker)
            own = LABELS.of(self._settings.run_id, self._settings.phase_index, worker)
            system = self._systems[worker.system]
            request = create_request(self._infrastructure, system, own, python=found.name, mounted=mounted)
            client.create_container_from_config(request, name)
            if mounted.is_copied:
                elsewhere.copy_in(client, name, copied, found)
            client.start(name)
            self._await_agent(client, worker, found)
            write_host(home, self._host(client, worker))
        return self._address(worker, found)

    def _mounted(self, worker: Worker) -> tuple[Mounted, list[Path]]:
        """Return a worker's mounts, and what is copied in where the engine is elsewhere.

        Directories that a phase needs are mounted in either case: then they are the engine machine's.
        """
        home, payload = self._home(worker), payload_directory(self._directory.parent)
        if self._is_here(worker):
            return Mounted(home=str(home), payload=str(payload), binds=self._binds, private=self._private), []
        files = [bind for bind in self._binds if Path(bind.partition(":")[0]).is_file()]
        binds = [bind for bind in self._binds if bind not in files]
        copied = [home, payload, *(Path(bind.partition(":")[0]) for bind in files)]
        return Mounted(home=str(home), payload=str(payload), binds=binds, is_copied=True), copied

    def _is_here(self, worker: Worker) -> bool:
        return is_here(self._url(worker.system))

    def _address(self, worker: Worker, found: engine.Interpreter) -> Address:
        """Return where a worker's agent listens."""
        here = address_of(self._home(worker))
        if self._is_here(worker):
            return here
        return elsewhere.AddressElsewhere(
            socket_path=here.socket_path,
            host=here.host,
            engine=lambda: engine.connect(self._url(worker.system)),
            container=self._name(worker),
            relay=self._relay(found),
        )

    def _relay(self, found: engine.Interpreter) -> tuple[str, ...]:
        return elsewhere.relay_words(found, payload_directory(self._directory.parent))

    def _interpreters(self, workers: Sequence[Worker]) -> list[engine.Interpreter]:
        """Return the Python of each worker; each engine is asked once, one at a time, since it may pull the image."""
        by_engine: dict[str, engine.Interpreter] = {}
        for worker in workers:
            url = self._url(worker.system)
            if url not in by_engine:
                by_engine[url] = self._interpreter(worker)
        return [by_engine[self._url(worker.system)] for worker in workers]

    def _interpreter(self, worker: Worker) -> engine.Interpreter:
        with self._engine(worker.system) as client:
            return engine.interpreter(client, self._url(worker.system), self._infrastructure)

    def _make_home(self, worker: Worker, found: engine.Interpreter) -> None:
        """Make a worker's directory, owned by the user that its agent runs as, unless that is root."""
        home = self._home(worker)
        (home / "io").mkdir(mode=0o700, parents=True)
        config = write_agent_config(home, self._settings, worker)
        if found.uid in (0, os.getuid()) or not self._is_here(worker):
            return
        try:
            for path in (home, home / "io", config):
                os.chown(path, found.uid, found.gid)
        except PermissionError as exc:
            message = (
                f'its containers run as user {found.uid}: as who is not root, write user: "{os.getuid()}"'
            )
            raise BackendError(message, system=worker.system) from exc

    def _await_agent(self, client: engine.Client, worker: Worker, found: engine.Interpreter) -> None:
        """Wait until an agent listens; raises BackendError with the end of its log if it does not."""
        home, name = self._home(worker), self._name(worker)
        if not self._is_here(worker):
            words = [*self._relay(found), str(home / SOCKET), f"{AGENT_TIMEOUT_S:g}"]
            with suppress(APIError):  # it has ended already
                if elsewhere.listens(client, name, words):
                    return
            raise BackendError(self._why_not(client, worker), system=worker.system)
        deadline = time.monotonic() + AGENT_TIMEOUT_S
        look_at = time.monotonic() + LOOK_S
        while not (home / SOCKET).exists():
            now = time.monotonic()
            if now > look_at:
                look_at = now + LOOK_S
                container = engine.inspect(client, name)
                if container is None or not container["State"]["Running"] or now > deadline:
                    raise BackendError(self._why_not(client, worker), system=worker.system)
            time.sleep(POLL_S)

    def _why_not(self, client: engine.Client, worker: Worker) -> str:
        """Return why an agent did not start."""
        words = ""
        with suppress(DockerException, RequestException):
            words = client.logs(self._name(worker), tail=LAST_WORDS).decode(errors="replace").strip()
        evidence = self.evidence(worker, is_gone=True)
        how = evidence.text if evidence is not None else "it does not listen"
        return f"the agent of worker {worker.number} did not begin: {how}" + (f": {words}" if words else "")

    def _host(self, client: engine.Client, worker: Worker) -> str:
        """Return the address by which other workers reach a container; on the host's network, the host's."""
        container = engine.inspect(client, self._name(worker)) or {}
        machine = "127.0.0.1" if self._is_here(worker) else host_of(self._url(worker.system))
        networks = container.get("NetworkSettings", {}).get("Networks", {}).values()
        return next((each["IPAddress"] for each in networks if each.get("IPAddress")), machine)

    def _is_alive(self, client: engine.Client, worker: Worker) -> bool:
        container = engine.inspect(client, self._name(worker))
        listens = not self._is_here(worker) or (self._home(worker) / SOCKET).exists()
        return container is not None and container["State"]["Running"] and listens

    # -- destroying -------------------------------------------------------------------------------

    def destroy(self, workers: Sequence[Worker]) -> None:
        """End these workers and everything that runs in them, and remove their files.

        Includes workers of earlier orchestrators, and those whose agents have died.
        """
        threads = [
            threading.Thread(target=self._remove, args=(worker,), name=self._name(worker), daemon=True)
            for worker in dict.fromkeys(workers)
        ]
        for thread in threads:
            thread.start()
        deadline = None if self._removal_grace_s is None else time.monotonic() + self._removal_grace_s
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                _log.warning("removal of %s goes on in the background", thread.name)

    def _remove(self, worker: Worker) -> None:
        """Remove a container; where its engine is down, still end its processes."""
        home = self._home(worker)
        try:
            with self._engine(worker.system) as client:
                engine.remove(client, self._name(worker))
        except BackendError as exc:
            _log.warning("container %s is left to `prefect-ft clean`: %s", self._name(worker), exc)
            end_strays(home)
        shutil.rmtree(home, ignore_errors=True)

    def exchange(self, old: Sequence[Worker], new: Sequence[Worker]) -> list[Address]:
        """Destroy and create concurrently: no rank starts in new workers before both are done."""
        return exchange_side_by_side(self, old, new)

    # -- finding ----------------------------------------------------------------------------------

    def find(self) -> list[Found]:
        """Return the phase's workers, also those of earlier orchestrators, by their directories and labels.

        In the order of epoch and decision. Directories need no engine.
        """
        homes = [self._completed(each) for each in found_in(self._directory, self._settings.phase_index)]
        known = {found.worker for found in homes}
        others = [
            self._completed(Found(worker=worker, address=address_of(self._home(worker)), result=None))
            for worker in self._labelled()
            if worker not in known
        ]
        return sorted(
            [*homes, *others], key=lambda each: (each.worker.epoch, each.worker.decision, each.worker.number)
        )

    def _completed(self, found: Found) -> Found:
        """Return a found worker; for one elsewhere, with its address and the result that it left there."""
        worker = found.worker
        if worker.system not in self._systems or self._is_here(worker):
            return found
        with (
            suppress(BackendError),
            self._engine(worker.system) as client,
        ):  # an engine that is down adds nothing
            left = elsewhere.read_there(client, self._name(worker), self._home(worker) / LEFT)
            address = self._address(worker, self._interpreter(worker))
            # The orchestrator that created it may have stored its host on another machine.
            address = replace(address, host=self._host(client, worker))
            return Found(worker=worker, address=address, result=left)
        return found

    def _labelled(self) -> list[Worker]:
        wanted = [f"{LABELS.run}={self._settings.run_id}", f"{LABELS.phase}={self._settings.phase_index}"]
        found: list[Worker | None] = []
        for system in self._systems:
            with suppress(BackendError):  # an engine that is down adds nothing
                with self._engine(system) as client:
                    containers = client.containers(all=True, filters={"label": wanted})
                found += [LABELS.worker(each["Labels"]) for each in containers]
        return [worker for worker in dict.fromkeys(found) if worker is not None]

    def answers(self, system: str) -> bool:
        """Whether the system itself responds, whatever the state of its workers."""
        return system in self._systems and engine.answers(self._url(system))

    def evidence(self, worker: Worker, *, is_gone: bool) -> Evidence | None:
        """Return what the engine knows about what just ended in a worker.

        `is_gone`: the agent itself ended.
        """
        name = self._name(worker)
        try:
            with self._engine(worker.system) as client:
                container = self._settled(client, name, is_gone=is_gone)
                is_oom = container is not None and _ran_out_of_memory(client, name)
        except BackendError as exc:
            return Evidence(rule="engine-away", text=str(exc))
        if container is None or container["State"]["Status"] == "removing":
            return Evidence(rule="container-removed", text="its container was removed from outside")
        if is_oom:
            return USED_UP
        if not container["State"]["Running"]:
            text = f"its container has ended with exit code {container['State']['ExitCode']}"
            return Evidence(rule="container-ended", text=text)
        return None

    def _settled(self, client: engine.Client, name: str, *, is_gone: bool) -> dict[str, Any] | None:
        """Return the engine's description of a container; `is_gone`: wait until it has noticed the agent's end."""
        deadline = time.monotonic() + (NOTICE_TIMEOUT_S if is_gone else 0)
        while True:
            container = engine.inspect(client, name)
            if container is None or not container["State"]["Running"] or time.monotonic() > deadline:
                return container
            time.sleep(POLL_S)

    # -- engines and names ------------------------------------------------------------------------

    @contextmanager
    def _engine(self, system: str) -> Iterator[engine.Client]:
        """Return a client of a system's engine; its failures are BackendErrors of that system."""
        try:
            url = self._url(system)
            with closing(engine.connect(url)) as client, engine.translated_errors(url):
                yield client
        except BackendError as exc:
            raise BackendError(str(exc), system=system) from exc

    def close(self) -> None:
        """Do nothing: each call closes its own connection."""

    def _url(self, system: str) -> str:
        return engine.engine_url(self._infrastructure, self._systems[system])

    def _note_engines(self) -> None:
        """Record which engines may have containers of this run, before there are any."""
        path = self._directory / ENGINES
        urls = {self._url(system) for system in self._systems}
        noted = set(read_json(path).get("engines", ()))
        if not urls <= noted:
            write_json(path, {"engines": sorted(urls | noted)})

    def _home(self, worker: Worker) -> Path:
        return home_of(self._directory, self._settings.phase_index, worker)

    def _name(self, worker: Worker) -> str:
        return name_of(self._settings.run_id, self._settings.phase_index, worker)


def _ran_out_of_memory(client: engine.Client, name: str) -> bool:
    """Whether the engine has reported it lately: the container's own flag is never reset."""
    now = time.time()
    since, until = f"{now - OOM_WINDOW_S:.6f}", f"{now:.6f}"
    events = client.events(since, until, filters={"container": name, "event": "oom"}, decode=True)
    return any(True for _ in events)


def remove_containers(directory: Path, say: Callable[[str], None] = _log.warning) -> None:
    """Remove all containers of the run with this run-time directory; report unreachable engines."""
    for url in read_json(directory / ENGINES).get("engines", ()):
        try:
            with closing(engine.connect(url)) as client, engine.translated_errors(url):
                for each in client.containers(all=True, filters={"label": f"{LABELS.run}={directory.name}"}):
                    engine.remove(client, each["Id"])
        except BackendError as exc:
            say(f"containers of run {directory.name} may be left: {exc}")
