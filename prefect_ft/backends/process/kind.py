"""The kind `process`: workers are groups of processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from prefect_ft.backends.base import Backend
from prefect_ft.backends.host import visible_accelerators
from prefect_ft.backends.kind import Kind, Workers
from prefect_ft.backends.process.config import ProcessInfrastructure
from prefect_ft.config import Phase, given_in


class ProcessKind(Kind[ProcessInfrastructure]):
    """Every system is this machine."""

    config = ProcessInfrastructure
    block = "prefect_ft.blocks.training:ProcessTraining"

    def check(self, infrastructure: ProcessInfrastructure, field: str) -> None:
        """Accept everything: only this machine is needed."""

    def check_phase(
        self,
        infrastructure: ProcessInfrastructure,
        phase: Phase,
        env: Mapping[str, str | None],
        field: str,
        *,
        is_first: bool,
    ) -> None:
        """Check its directory, its number of ranks and, of the first phase, its command."""
        from prefect_ft.backends.process import checks  # noqa: PLC0415  (a job is read without it)

        checks.check_directory(phase, f"{field}.cwd")
        checks.check_ranks(phase, infrastructure.workers, f"{field}.nproc_per_worker")
        if is_first:
            checks.check_command(phase, given_in({**os.environ, **env}), f"{field}.command")

    def ranks_per_worker(self, infrastructure: ProcessInfrastructure, env: Mapping[str, str | None]) -> int:
        """Return how many accelerators of this machine ranks see, or 1."""
        del infrastructure
        return visible_accelerators(given_in({**os.environ, **env})) or 1

    def backend(self, workers: Workers[ProcessInfrastructure]) -> Backend:
        """Return what starts and ends agents here."""
        from prefect_ft.backends.process.backend import ProcessBackend  # noqa: PLC0415  (a job is read without it)

        return ProcessBackend(workers.settings, workers.directory, workers.system_env, workers.system_locks)

    def clear(self, directory: Path) -> None:
        """Do nothing: processes of every kind are found by the run-time directory and ended with it."""

    def shared_fate(self) -> str | None:
        """Name the unit, step, pod or container that this process is in, unless agents can leave it."""
        from prefect_ft.backends.process.scope import own_shared_fate  # noqa: PLC0415  (a job is read without it)

        return own_shared_fate()


KIND = ProcessKind()
