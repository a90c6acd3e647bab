"""What a pool of container engines must have before a run begins: looked at, and images gotten."""

from __future__ import annotations

from contextlib import closing

from prefect_ft.backends.docker import engine
from prefect_ft.backends.docker.config import DockerInfrastructure
from prefect_ft.errors import BackendError, ConfigError


def check_systems(infrastructure: DockerInfrastructure, field: str) -> None:
    """Raise ConfigError for the first system on which no worker could be created.

    `field` is the infrastructure's own.
    """
    seen: set[str] = set()
    for index, system in enumerate(infrastructure.systems):
        place = f"{field}.systems[{index}].engine" if system.engine else f"{field}.engine"
        try:
            url = engine.engine_url(infrastructure, system)
            if url in seen:
                continue
            client = engine.connect(url)
        except BackendError as exc:
            raise ConfigError(str(exc), field=place) from exc
        seen.add(url)
        with closing(client):
            try:
                engine.interpreter(client, url, infrastructure)
            except BackendError as exc:
                raise ConfigError(str(exc), field=f"{field}.image") from exc
