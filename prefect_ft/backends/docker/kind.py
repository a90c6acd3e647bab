"""The kind `docker`: workers are containers of Docker engines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from prefect_ft.backends.base import Backend
from prefect_ft.backends.docker.config import DockerInfrastructure
from prefect_ft.backends.docker.kept import ENGINES
from prefect_ft.backends.host import visible_accelerators
from prefect_ft.backends.kind import Kind, Workers
from prefect_ft.config import given_in

REMOVAL_GRACE = "MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS"


class DockerKind(Kind[DockerInfrastructure]):
    """A system is an engine, or a part of the devices of one."""

    config = DockerInfrastructure
    block = "prefect_ft.blocks.training:DockerTraining"

    def check(self, infrastructure: DockerInfrastructure, field: str) -> None:
        """Check the engine of each system, and pull the image where it is missing."""
        from prefect_ft.backends.docker.checks import check_systems  # noqa: PLC0415  (its client costs 0.1 s)

        check_systems(infrastructure, field)

    def ranks_per_worker(self, infrastructure: DockerInfrastructure, env: Mapping[str, str | None]) -> int:
        """Return how many devices a container requests; where it requests all, how many are here, or 1."""
        asked = sum(len(each.device_ids) or (each.count or -1) for each in infrastructure.device_requests)
        return asked if asked > 0 else visible_accelerators(given_in({**os.environ, **env})) or 1

    def backend(self, workers: Workers[DockerInfrastructure]) -> Backend:
        """Return the backend that uses the engines."""
        from prefect_ft.backends.docker.backend import DockerBackend  # noqa: PLC0415  (its client costs 0.1 s)

        return DockerBackend(
            workers.settings,
            workers.directory,
            workers.infrastructure,
            binds=binds_of(workers),
            private=workers.run_root.parent.absolute(),
            removal_grace_s=removal_grace_s(workers.env),
        )

    def clear(self, directory: Path) -> None:
        """Remove a run's containers from the engines that may have some."""
        if (directory / ENGINES).exists():
            from prefect_ft.backends.docker.engines import remove_containers  # noqa: PLC0415  (its client costs 0.1 s)

            remove_containers(directory)


def binds_of(workers: Workers[DockerInfrastructure]) -> tuple[str, ...]:
    """Return the bind mounts that ranks need beside the user's volumes."""
    path = workers.checkpoints
    kept = [] if path is None or workers.infrastructure.mounts(path) else [f"{path}:{path}"]
    return (*kept, *(f"{here}:{there}:ro" for there, here in workers.files.items()))


def removal_grace_s(env: Mapping[str, str | None]) -> float | None:
    """Return how long the removal of an old worker may delay the new one; None: as long as it takes."""
    written = env.get(REMOVAL_GRACE) or ""
    return float(written) if written.isascii() and written.isdigit() and int(written) > 0 else None


KIND = DockerKind()
