"""train-flow: a job's phases, one after the other; a later one starts only if the one before completed.

Its process may die at any moment: who runs the flow run again goes on where it was.
"""

from __future__ import annotations

from asyncio import CancelledError
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, cast

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import Abort
from prefect.states import Cancelled, Completed, Failed

from prefect_ft.blocks import (
    DockerTraining,
    KubernetesTraining,
    ProcessTraining,
    infrastructure_of_block,
)
from prefect_ft.config import JobConfig, load_job
from prefect_ft.console import outlive_readers_of_logs
from prefect_ft.errors import LeaseLostError, RunElsewhereError, RunFailedError, RunHeldError
from prefect_ft.journal.summary import PhaseSummary
from prefect_ft.orchestrate import preflight
from prefect_ft.orchestrate.metrics import serving
from prefect_ft.orchestrate.phase import summary_of
from prefect_ft.orchestrate.run import (
    begin_run,
    check_places_of,
    check_systems,
    end_unwatched,
    go_on,
    held,
    is_kept_alive,
    job_of,
    run_to_its_end,
    tell_unread,
)
from prefect_ft.plaintext import as_line
from prefect_ft.prefect_edge.reporting import is_cancelled_meanwhile, report_end, reporting
from prefect_ft.prefect_edge.tasks import execute_phase
from prefect_ft.prefect_edge.timeouts import heeding_timeouts
from prefect_ft.report.words import completed_sentence
from prefect_ft.run import Holding, Run, Vacancy, latest_run, run_of_flow_run, vacancy
from prefect_ft.supervisor import StopRequest

Unfinished = Literal["refuse", "resume", "fresh"]


@flow(name="train-flow", persist_result=False)
def train_flow(
    job: JobConfig | Path,
    unfinished: Unfinished = "refuse",
    infrastructure: DockerTraining | KubernetesTraining | ProcessTraining | None = None,
) -> list[dict[str, Any]]:
    """Run a training job until it finishes, restarting what fails as its policy says.

    Args:
        job: The job itself, or the path of a job file on the machine that runs the flow.
        unfinished: What to do with a run in the model directory whose orchestrator died: refuse to start,
            resume it (one that failed or was cancelled too), or end it and begin a fresh one. A flow run
            that is run again resumes its own.
        infrastructure: A saved block that takes the place of the job's infrastructure.

    Returns the phases' summaries (summary.json). Raises RunFailedError when a phase gives up; a cancelled
    run ends in the state Cancelled.
    """
    outlive_readers_of_logs()
    flow_run_id = _flow_run_id()
    own = run_of_flow_run(flow_run_id) if flow_run_id is not None else None
    if own is not None and own.status != "running":
        report_end()
        return _outcome(own)
    if own is not None:
        job = job_of(own)  # the file may have been changed since, or be gone
    else:
        job = load_job(job, blocks=infrastructure_of_block) if isinstance(job, Path) else job.at(Path.cwd())
        if infrastructure is not None:
            job = job.on(infrastructure.infrastructure()).at(Path.cwd())
        own = run_of_flow_run(flow_run_id, Path(job.model_dir)) if flow_run_id is not None else None
    if own is not None and own.status != "running":
        report_end()
        return _outcome(own)  # one death of a process may bring a flow run back twice
    if own is not None and is_cancelled_meanwhile():
        own.want_cancelled("cancelled in Prefect")
    try:
        entered = _enter(job, flow_run_id, own, unfinished)
        held_job = job if entered.is_new else job_of(entered.holding.run)
        result = _run(held_job, entered.holding, by_hand=entered.by_hand)
    except LeaseLostError as error:
        _step_back(f"this process lets go of the run: {error}")
    except (RunHeldError, RunElsewhereError) as error:
        if own is None:
            report_end()
            raise
        _step_back(f"this flow run is for another process: {error}")
    except (Exception, KeyboardInterrupt, CancelledError):
        report_end()
        raise
    report_end()
    return result


def _step_back(why: str) -> NoReturn:
    """Leave the flow run to the process that has it now, or comes next: Prefect is told of no end."""
    raise Abort(why)


def _flow_run_id() -> str | None:
    context = FlowRunContext.get()
    return str(context.flow_run.id) if context is not None and context.flow_run is not None else None


class _Entered(NamedTuple):
    """A run that this process has got hold of; `by_hand`: a person asked for it to be taken up again."""

    holding: Holding
    is_new: bool = False
    by_hand: bool = False


def _enter(job: JobConfig, flow_run_id: str | None, own: Run | None, unfinished: Unfinished) -> _Entered:
    """Get hold of a run."""
    latest = latest_run(Path(job.model_dir))
    if latest is not None and _is_to_go_on(latest, own, unfinished):
        check_places_of(latest)
    preflight.check(job)
    free = vacancy(Path(job.model_dir), job.lease_s)
    before = free.previous
    if before is not None and _is_to_go_on(before, own, unfinished):
        by_hand = own is None and not (before.status == "running" and is_kept_alive())
        return _Entered(_take_up(free, flow_run_id, by_hand=by_hand), by_hand=by_hand)
    if before is not None and before.status == "running" and unfinished == "fresh":
        preflight.quarantined(job)  # a run that cannot begin is to end none
        check_systems(job, before)
        end_unwatched(free.go_on(), "a fresh run was asked for")
        free = vacancy(Path(job.model_dir), job.lease_s)
    return _Entered(begin_run(job, free, flow_run_id=flow_run_id), is_new=True)


def _is_to_go_on(before: Run, own: Run | None, unfinished: Unfinished) -> bool:
    if unfinished == "resume":
        return before.status != "completed"
    return own is not None and before.status == "running"


def _take_up(free: Vacancy, flow_run_id: str | None, *, by_hand: bool) -> Holding:
    holding = go_on(free)
    tell_unread(holding.run)
    if by_hand:
        holding.run.forget_cancel()
    holding.run.describe(status="running")
    if flow_run_id is not None:
        holding.run.belongs_to(flow_run_id)
    return holding


def _run(job: JobConfig, holding: Holding, *, by_hand: bool) -> list[dict[str, Any]]:
    """Run the phases that have not completed yet."""
    with (
        held(holding, job) as (_, stop),
        heeding_timeouts(stop.ask),
        reporting(holding.run, stop.ask),
        serving(job.metrics, holding.run),
    ):
        run_to_its_end(holding, stop, lambda: _run_phases(job, holding, stop, by_hand=by_hand))
    return _outcome(holding.run)


def _run_phases(job: JobConfig, holding: Holding, stop: StopRequest, *, by_hand: bool) -> PhaseSummary:
    """Run what has not ended, and by hand what has not completed; return the phase that was the last."""
    for index in range(len(job.phases)):
        summary = summary_of(holding.run, index)
        if summary is None or summary.status == "running" or (by_hand and summary.status != "completed"):
            summary = execute_phase(job, index, holding, stop, by_hand=by_hand)
        if summary.status != "completed" or index == len(job.phases) - 1:
            return summary
    raise AssertionError("a job has phases")


def _outcome(run: Run) -> list[dict[str, Any]]:
    """End the flow run as its run ended."""
    begun = sorted({phase["index"] for phase in run.told().get("phases", ())})
    summaries = [summary for index in begun if (summary := summary_of(run, index)) is not None]
    last = summaries[-1] if summaries else None
    reason = as_line(f"phase {last.phase}: {last.reason}" if last else f"run {run.run_id} is {run.status}")
    # Prefect takes a state that is returned for the end itself, with its message.
    match run.status:
        case "completed":
            data = [summary.to_json() for summary in summaries]
            state: State[Any] = Completed(message=completed_sentence(summaries), data=data)
        case "cancelled":
            state = Cancelled(message=f"Cancelled in {reason}.")
        case _:
            state = Failed(message=f"Gave up in {reason}.", data=RunFailedError(reason))
    return cast("list[dict[str, Any]]", state)
