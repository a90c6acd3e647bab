"""Where a phase runs: the systems that a scheduler lends, and the run's directory for sockets."""

from __future__ import annotations

from pathlib import Path

from prefect_ft.backends.clearing import clear_directory
from prefect_ft.backends.kind import Place, kind_of
from prefect_ft.config import JobConfig
from prefect_ft.errors import NotStartedError, TenureCancelledError
from prefect_ft.orchestrate.earlier import systems_of
from prefect_ft.orchestrate.tenures import Tenancy
from prefect_ft.run import Run, made_runtime_directory
from prefect_ft.run.ownership import own_runtime, recorded_runtime
from prefect_ft.supervisor import StopRequest


def tenancy_of(job: JobConfig, index: int, run: Run, stop: StopRequest) -> Tenancy | None:
    """Get the systems of a phase from their scheduler; None: the job names them, or the run is to stop.

    Raises NotStartedError where the run is to stop and has no phase that could say so.
    """
    infrastructure = job.infrastructure_of(index)
    place = Place(
        run_id=run.run_id,
        key=run.key,
        job=job.name,
        model_dir=run.model_dir,
        run_root=run.root,
        directory=runtime_of(run),
    )
    try:
        tenure = kind_of(infrastructure).tenure(infrastructure, place, lambda: stop.wanted is not None)
    except TenureCancelledError as exc:
        stop.ask(str(exc))
    else:
        if tenure is not None:
            return Tenancy(infrastructure, place, tenure)
    if stop.wanted is not None and not infrastructure.systems and systems_of(run, index) is None:
        raise NotStartedError(f"{stop.wanted} before the run had systems")
    return None


def placed_on(job: JobConfig, index: int, run: Run, tenancy: Tenancy | None) -> JobConfig:
    """Return the job with the systems of a phase where its scheduler has chosen them."""
    systems = systems_of(run, index) if tenancy is None else tenancy.tenure.systems
    if systems is None:
        return job
    placed = job.infrastructure_of(index).placed_on(systems)
    phases = list(job.phases)
    phases[index] = phases[index].model_copy(update={"infrastructure": placed})
    return job.model_copy(update={"phases": tuple(phases)})


def runtime_of(run: Run) -> Path:
    """Return the run's directory for sockets; if it was removed, its unreachable processes are ended."""
    directory = recorded_runtime(run)
    if not directory.exists():
        clear_directory(directory)
    made_runtime_directory(directory)
    own_runtime(run)
    return directory
