"""Gets hold of the run that a job asks for: a new one, or one that a model directory holds already."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from prefect_ft.config import JobConfig
from prefect_ft.orchestrate import preflight
from prefect_ft.orchestrate.run import (
    begin_run,
    check_places_of,
    check_systems,
    end_unwatched,
    is_kept_alive,
    job_of,
    resume_run,
    warn_of_unread,
)
from prefect_ft.run import Holding, Run, Vacancy, latest_run, vacancy

Unfinished = Literal["refuse", "resume", "fresh"]
"""What to do with a run in the model directory that has not ended."""


class Entered(NamedTuple):
    """A run that this process holds, and its job. `by_hand`: a person asked to resume it."""

    job: JobConfig
    holding: Holding
    by_hand: bool = False


def enter(
    job: JobConfig, unfinished: Unfinished, *, own: Run | None = None, flow_run_id: str | None = None
) -> Entered:
    """Get hold of a run; `own` is that of the flow run. Raises what `begin_run` and `resume_run` do."""
    latest = latest_run(Path(job.model_dir))
    if latest is not None and _must_resume(latest, own, unfinished):
        check_places_of(latest)
    preflight.check(job)
    free = vacancy(Path(job.model_dir), job.lease_s)
    before = free.previous
    if before is not None and _must_resume(before, own, unfinished):
        by_hand = own is None and not (before.status == "running" and is_kept_alive())
        holding = _resume(free, flow_run_id, by_hand=by_hand)
        return Entered(job_of(holding.run), holding, by_hand)
    if before is not None and before.status == "running" and unfinished == "fresh":
        preflight.quarantined(job)  # a run that cannot begin must not end another
        check_systems(job, before)
        end_unwatched(free.resume(), "a fresh run was asked for")
        free = vacancy(Path(job.model_dir), job.lease_s)
    return Entered(job, begin_run(job, free, flow_run_id=flow_run_id))


def _must_resume(before: Run, own: Run | None, unfinished: Unfinished) -> bool:
    if unfinished == "resume":
        return before.status != "completed"
    return own is not None and before.status == "running"


def _resume(free: Vacancy, flow_run_id: str | None, *, by_hand: bool) -> Holding:
    holding = resume_run(free)
    warn_of_unread(holding.run)
    if by_hand:
        holding.run.forget_cancel()
    holding.run.describe(status="running")
    if flow_run_id is not None:
        holding.run.belongs_to(flow_run_id)
    return holding
