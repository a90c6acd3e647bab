"""The kind `slurm`: workers are processes on the nodes of an allocation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from prefect_ft.backends.base import Backend
from prefect_ft.backends.kind import Kind, Place, Tenure, TenureEnd, Workers
from prefect_ft.backends.slurm.allocations import POINTER
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.journal.records import Line
from prefect_ft.run import certificates_of

if TYPE_CHECKING:
    from prefect_ft.backends.slurm.lending import Lending


class SlurmKind(Kind[SlurmInfrastructure]):
    """A system is a node of the allocation: one that is submitted, or the one that this process is in."""

    config = SlurmInfrastructure
    block = "prefect_ft.blocks.training:SlurmTraining"

    def check(self, infrastructure: SlurmInfrastructure, field: str) -> None:
        """Look for Slurm's commands, and have Slurm test the submission."""
        from prefect_ft.backends.slurm.checks import check  # noqa: PLC0415  (a job is read without it)

        check(infrastructure, field)

    def ranks_per_worker(self, infrastructure: SlurmInfrastructure, env: Mapping[str, str | None]) -> int:
        """Return how many accelerators are requested of a node, or 1."""
        del env
        return infrastructure.accelerators() or 1

    def tenure(
        self, infrastructure: SlurmInfrastructure, place: Place, is_stopped: Callable[[], bool]
    ) -> Tenure | None:
        """Return the nodes of the run's allocation, or of one that is submitted for it."""
        return _lending(infrastructure, place).tenure(is_stopped)

    def renewed(self, infrastructure: SlurmInfrastructure, place: Place, tenure: Tenure) -> Tenure:
        """Return a tenure with its present end: time limits can change."""
        return _lending(infrastructure, place).renewed(tenure)

    def end_of_tenure(self, infrastructure: SlurmInfrastructure, place: Place, name: str) -> TenureEnd:
        """Return how an earlier allocation ended, according to Slurm."""
        return _lending(infrastructure, place).end_of(name)

    def release(self, infrastructure: SlurmInfrastructure, place: Place, tenure: Tenure) -> None:
        """Release the nodes: the successor begins when they are free."""
        _lending(infrastructure, place).release(tenure)

    def succeed(self, infrastructure: SlurmInfrastructure, place: Place, tenure: Tenure) -> str | None:
        """Queue the next allocation, which begins when this one has ended."""
        return _lending(infrastructure, place).succeed(tenure)

    def growing(
        self,
        infrastructure: SlurmInfrastructure,
        place: Place,
        tenure: Tenure,
        workers: Callable[[], int | None],
        grown: Callable[[str], None],
    ) -> AbstractContextManager[None]:
        """Request missing nodes by a further job, if `grows` is set."""
        if not infrastructure.grows:
            return nullcontext()
        from prefect_ft.backends.slurm.growing import growing  # noqa: PLC0415  (a job is read without it)

        return growing(_lending(infrastructure, place).growth(tenure), workers, grown)

    def join(self, infrastructure: SlurmInfrastructure, place: Place, tenure: Tenure) -> bool:
        """Join the further allocations to this one for the next tenure."""
        return _lending(infrastructure, place).join(tenure)

    def backend(self, workers: Workers[SlurmInfrastructure]) -> Backend:
        """Return the backend that uses the node servers of the present allocation."""
        from prefect_ft.backends.slurm.backend import SlurmBackend  # noqa: PLC0415  (a job is read without it)

        settings = replace(workers.settings, certificates=certificates_of(workers.run_root))
        return SlurmBackend(settings, workers.infrastructure, workers.run_root, system_env=workers.system_env)

    def isolating(
        self,
        infrastructure: SlurmInfrastructure,
        run_id: str,
        directory: Path,
        lines: Callable[[], Sequence[Line]],
        *,
        ends_with_the_run: bool,
    ) -> AbstractContextManager[None]:
        """Keep isolated nodes out of later allocations, and release lost ones if configured."""
        from prefect_ft.backends.slurm.isolation import keeping_out  # noqa: PLC0415  (a job is read without it)

        del run_id, ends_with_the_run
        return keeping_out(infrastructure, directory, lines)

    def standing(self, run_root: Path) -> Sequence[str]:
        """Return which Slurm job a run is in, and which of its jobs wait."""
        if not (run_root / "slurm").is_dir():
            return ()
        from prefect_ft.backends.slurm.holdings import standing  # noqa: PLC0415  (a job is read without it)

        return standing(run_root)

    def clear(self, directory: Path) -> None:
        """Release the allocations that a run submitted, and cancel its queued successors."""
        if (directory / POINTER).exists():
            from prefect_ft.backends.slurm.holdings import clear  # noqa: PLC0415  (a job is read without it)

            clear(directory)


def _lending(infrastructure: SlurmInfrastructure, place: Place) -> Lending:
    from prefect_ft.backends.slurm.lending import Lending  # noqa: PLC0415  (a job is read without it)

    return Lending(infrastructure, place)


KIND = SlurmKind()
