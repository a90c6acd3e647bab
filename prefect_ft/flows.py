"""train-flow: a job's phases, one after the other; a later one starts only if the one before completed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, cast

from prefect import flow
from prefect.states import Cancelled

from prefect_ft import preflight
from prefect_ft.config import JobConfig, load_job
from prefect_ft.errors import RunFailedError
from prefect_ft.reporting import reporting
from prefect_ft.run import new_run
from prefect_ft.summary import PhaseSummary
from prefect_ft.supervisor import StopRequest
from prefect_ft.tasks import execute_phase


@flow(name="train-flow", persist_result=False)
def train_flow(job: JobConfig | Path) -> list[dict[str, Any]]:
    """Run a training job until it finishes, restarting what fails as its policy says.

    Args:
        job: The job itself, or the path of a job file on the machine that runs the flow.

    Returns the phases' summaries (summary.json). Raises RunFailedError when a phase gives up; a cancelled
    run ends in the state Cancelled.
    """
    job = load_job(job) if isinstance(job, Path) else job.at(Path.cwd())
    preflight.check(job)
    run = new_run(Path(job.model_dir), job.name)
    status = "failed"
    summaries: list[PhaseSummary] = []
    try:
        with reporting(run), StopRequest() as stop:
            for index in range(len(job.phases)):
                summaries.append(execute_phase(job, index, run, stop))
                status = summaries[-1].status
                if status != "completed":
                    break
    finally:
        with contextlib.suppress(OSError):  # a full disk; the phases' journals say the same
            run.describe(status=status)
    reason = f"phase {summaries[-1].phase}: {summaries[-1].reason}"
    if status == "cancelled":
        # Prefect takes a state that is returned for the end itself.
        return cast("list[dict[str, Any]]", Cancelled(message=reason))
    if status == "failed":
        raise RunFailedError(reason)
    return [summary.to_json() for summary in summaries]
