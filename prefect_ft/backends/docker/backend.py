"""Workers as containers of Docker engines, each with its agent as PID 1.

A worker's directory is mounted into its container only: so the agent's socket is reached without the engine,
and training survives it. Where the engine is elsewhere the directory is copied in, and the agent reached
through the engine. A run's containers are found by their labels.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from prefect_ft.backends.base import Address, AgentSettings, Found, Worker, exchange_side_by_side
from prefect_ft.backends.docker import engine
from prefect_ft.backends.docker.config import DockerInfrastructure
from prefect_ft.backends.docker.containers import Containers
from prefect_ft.backends.docker.creation import Creation
from prefect_ft.backends.docker.engines import Engines
from prefect_ft.backends.docker.evidence import evidence_of
from prefect_ft.backends.home import found_in
from prefect_ft.backends.strays import end_strays
from prefect_ft.errors import BackendError
from prefect_ft.model import Evidence

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
        self._phase_index, self._directory = settings.phase_index, directory.absolute()
        self._engines = engines = Engines(infrastructure)
        self._containers = containers = Containers(settings, self._directory, engines)
        self._creation = Creation(settings, infrastructure, engines, containers, binds=binds, private=private)
        self._removal_grace_s = removal_grace_s

    # -- creating ---------------------------------------------------------------------------------

    def create(self, workers: Sequence[Worker]) -> list[Address]:
        """Create these workers, in their order; raises BackendError with none of them left behind.

        Keeps a worker that exists already with a live agent.
        """
        if not workers:
            return []
        self._engines.note(self._directory)
        try:
            pythons = self._engines.interpreters([worker.system for worker in workers])
            with ThreadPoolExecutor(len(workers)) as pool:
                return list(pool.map(self._create, workers, pythons))
        except BackendError:
            self.destroy(workers)
            raise
        except OSError as exc:
            self.destroy(workers)
            raise BackendError(f"a worker cannot be started: {exc}") from exc

    def _create(self, worker: Worker, python: engine.Interpreter) -> Address:
        with self._engines.client(worker.system) as client:
            if not self._containers.is_alive(client, worker):
                self._remove(worker)  # what an earlier orchestrator may have left under this name
                self._creation.create(client, worker, python)
        return self._containers.address(worker, python)

    # -- destroying -------------------------------------------------------------------------------

    def destroy(self, workers: Sequence[Worker]) -> None:
        """End these workers and everything that runs in them, and remove their files.

        Includes workers of earlier orchestrators, and those whose agents have died.
        """
        threads = [
            threading.Thread(
                target=self._remove, args=(worker,), name=self._containers.name(worker), daemon=True
            )
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
        name, home = self._containers.name(worker), self._containers.home(worker)
        try:
            with self._engines.client(worker.system) as client:
                engine.remove(client, name)
        except BackendError as exc:
            _log.warning("container %s is left to `prefect-ft clean`: %s", name, exc)
            end_strays(home)
        shutil.rmtree(home, ignore_errors=True)

    def exchange(self, old: Sequence[Worker], new: Sequence[Worker]) -> list[Address]:
        """Destroy and create concurrently: no rank starts in new workers before both are done."""
        return exchange_side_by_side(self, old, new)

    # -- finding ----------------------------------------------------------------------------------

    def find(self) -> list[Found]:
        """Return the phase's workers, also those of earlier orchestrators, by their directories and labels.

        In the order of epoch and decision. Directories need no engine. Records the engines for the clean-up: an earlier
        orchestrator on another machine may have left containers there.
        """
        self._engines.note(self._directory)
        homes = [self._completed(each) for each in found_in(self._directory, self._phase_index)]
        known = {found.worker for found in homes}
        others = [
            self._completed(self._containers.without_home(worker))
            for worker in self._containers.labelled()
            if worker not in known
        ]
        return sorted(
            [*homes, *others], key=lambda each: (each.worker.epoch, each.worker.decision, each.worker.number)
        )

    def _completed(self, found: Found) -> Found:
        """Return a found worker; for one elsewhere, with its address and the result that it left there."""
        worker = found.worker
        if worker.system not in self._engines.systems or self._engines.is_here(worker.system):
            return found
        with (
            suppress(BackendError),
            self._engines.client(worker.system) as client,
        ):  # one that is down adds nothing
            left = self._containers.left_in(client, worker)
            address = self._containers.address(worker, self._engines.interpreter(worker.system))
            # The orchestrator that created it may have stored its host on another machine.
            address = replace(address, host=self._containers.host(client, worker))
            return Found(worker=worker, address=address, result=left)
        return found

    def answers(self, system: str) -> bool:
        """Whether the system's engine answers, whatever the state of its workers."""
        return self._engines.answers(system)

    def evidence(self, worker: Worker, *, is_gone: bool) -> Evidence | None:
        """Return what the engine knows about what just ended in a worker.

        `is_gone`: the agent itself ended.
        """
        return evidence_of(self._engines, worker.system, self._containers.name(worker), is_gone=is_gone)

    def close(self) -> None:
        """Do nothing: each call closes its own connection."""
