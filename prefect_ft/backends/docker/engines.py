"""The container engines of a pool: each system's engine, clients of it, and the record of those that a run uses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from prefect_ft.backends.docker import engine
from prefect_ft.backends.docker.config import DockerInfrastructure, DockerSystem
from prefect_ft.backends.docker.kept import ENGINES
from prefect_ft.backends.docker.request import LABELS
from prefect_ft.backends.docker.transport import is_here
from prefect_ft.errors import BackendError
from prefect_ft.files import read_json, write_json

_log = logging.getLogger(__name__)


class Engines:
    """The engines of one infrastructure, by system."""

    def __init__(self, infrastructure: DockerInfrastructure) -> None:
        self._infrastructure = infrastructure
        self._systems = {system.name: system for system in infrastructure.systems}

    @property
    def systems(self) -> Sequence[str]:
        """The names of the systems."""
        return list(self._systems)

    def system(self, name: str) -> DockerSystem:
        """Return a system's section of the job file."""
        return self._systems[name]

    def url(self, system: str) -> str:
        """Return the URL of a system's engine."""
        return engine.engine_url(self._infrastructure, self._systems[system])

    def is_here(self, system: str) -> bool:
        """Whether a system's engine shares this machine's files."""
        return is_here(self.url(system))

    def answers(self, system: str) -> bool:
        """Whether a system's engine answers."""
        return system in self._systems and engine.answers(self.url(system))

    @contextmanager
    def client(self, system: str) -> Iterator[engine.Client]:
        """Return a client of a system's engine; its failures are BackendErrors of that system."""
        try:
            url = self.url(system)
            with closing(engine.connect(url)) as client, engine.translated_errors(url):
                yield client
        except BackendError as exc:
            raise BackendError(str(exc), system=system) from exc

    def interpreter(self, system: str) -> engine.Interpreter:
        """Return the Python of the image on a system's engine."""
        with self.client(system) as client:
            return engine.interpreter(client, self.url(system), self._infrastructure)

    def interpreters(self, systems: Sequence[str]) -> list[engine.Interpreter]:
        """Return the Python for each system; each engine is asked once, one at a time, since it may pull the image."""
        by_engine: dict[str, engine.Interpreter] = {}
        for system in systems:
            url = self.url(system)
            if url not in by_engine:
                by_engine[url] = self.interpreter(system)
        return [by_engine[self.url(system)] for system in systems]

    def note(self, directory: Path) -> None:
        """Record in a run-time directory which engines may have containers of the run, before there are any."""
        path = directory / ENGINES
        urls = {self.url(system) for system in self._systems}
        noted = set(read_json(path).get("engines", ()))
        if not urls <= noted:
            write_json(path, {"engines": sorted(urls | noted)})


def remove_containers(directory: Path, say: Callable[[str], None] = _log.warning) -> None:
    """Remove all containers of the run with this run-time directory; report unreachable engines."""
    for url in read_json(directory / ENGINES).get("engines", ()):
        try:
            with closing(engine.connect(url)) as client, engine.translated_errors(url):
                for each in client.containers(all=True, filters={"label": f"{LABELS.run}={directory.name}"}):
                    engine.remove(client, each["Id"])
        except BackendError as exc:
            say(f"containers of run {directory.name} may be left: {exc}")
