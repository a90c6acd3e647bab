"""train-flow: a job's phases, one after the other; a later one starts only if the one before completed.

Its process may die at any moment: running the flow run again continues where it was.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, cast

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import Abort
from prefect.states import Cancelled, Completed, Failed

from prefect_ft.blocks import (
    DockerTraining,
    KubernetesTraining,
    ProcessTraining,
    SlurmTraining,
    infrastructure_of_block,
)
from prefect_ft.config import JobConfig, load_job
from prefect_ft.console import outlive_readers_of_logs
from prefect_ft.errors import LeaseLostError, RunElsewhereError, RunFailedError, RunHeldError
from prefect_ft.orchestrate.earlier import summary_of
from prefect_ft.orchestrate.entering import Unfinished, enter
from prefect_ft.orchestrate.executing import execute
from prefect_ft.orchestrate.live import Begun, Live, begun_run
from prefect_ft.orchestrate.metrics import serving
from prefect_ft.orchestrate.run import held, job_of
from prefect_ft.plaintext import as_line
from prefect_ft.prefect_edge.reporting import report_end, reporting
from prefect_ft.prefect_edge.tasks import show, shown
from prefect_ft.prefect_edge.timeouts import heeding_timeouts
from prefect_ft.report.words import completed_sentence
from prefect_ft.run import Run, run_of_flow_run

Infrastructure = DockerTraining | KubernetesTraining | ProcessTraining | SlurmTraining


@flow(name="train-flow", persist_result=False)
def train_flow(
    job: JobConfig | Path,
    unfinished: Unfinished = "refuse",
    infrastructure: DockerTraining | KubernetesTraining | ProcessTraining | SlurmTraining | None = None,
) -> list[dict[str, Any]]:
    """Run a training job until it finishes, restarting what fails as its policy says.

    Args:
        job: The job itself, or the path of a job file on the machine that runs the flow.
        unfinished: What to do with a run in the model directory whose orchestrator died: refuse to start,
            resume it (also one that failed or was cancelled), or end it and begin a fresh one. A flow run
            that is run again resumes its own.
        infrastructure: A saved block that replaces the job's infrastructure.

    Returns the phases' summaries (summary.json). Raises RunFailedError when a phase gives up; a cancelled
    run ends in the state Cancelled.
    """
    outlive_readers_of_logs()
    begun = begun_run.get()
    if begun is not None:
        return _to_the_end(lambda: _follow(begun), is_own=False)
    flow_run_id = _flow_run_id()
    own = run_of_flow_run(flow_run_id) if flow_run_id is not None else None
    if own is None:
        job = _job(job, infrastructure)
        own = run_of_flow_run(flow_run_id, Path(job.model_dir)) if flow_run_id is not None else None
    elif own.status == "running":
        job = job_of(own)  # the file may have changed since, or be gone
    if own is not None and own.status != "running":
        report_end()
        return _outcome(own)  # one death of a process may restart a flow run twice
    known = cast("JobConfig", job)
    return _to_the_end(lambda: _run(known, unfinished, own, flow_run_id), is_own=own is not None)


def _job(job: JobConfig | Path, infrastructure: Infrastructure | None) -> JobConfig:
    """Return the job with absolute paths."""
    read = load_job(job, blocks=infrastructure_of_block) if isinstance(job, Path) else job.at(Path.cwd())
    return read if infrastructure is None else read.on(infrastructure.infrastructure()).at(Path.cwd())


def _to_the_end(work: Callable[[], Run], *, is_own: bool) -> list[dict[str, Any]]:
    """Return the end of the run that `work` executes or follows. `is_own`: the flow run has run it before."""
    try:
        run = work()
    except LeaseLostError as error:
        _step_back(f"this process leaves the run: {error}")
    except (RunHeldError, RunElsewhereError) as error:
        if not is_own:
            report_end()
            raise
        _step_back(f"this flow run is for another process: {error}")
    except (Exception, KeyboardInterrupt, CancelledError):
        report_end()
        raise
    report_end()
    return _outcome(run)


def _step_back(why: str) -> NoReturn:
    """Leave the flow run to the process that holds it now, or to the next one, without reporting an end to Prefect."""
    raise Abort(why)


def _flow_run_id() -> str | None:
    context = FlowRunContext.get()
    return str(context.flow_run.id) if context is not None and context.flow_run is not None else None


def _run(job: JobConfig, unfinished: Unfinished, own: Run | None, flow_run_id: str | None) -> Run:
    """Execute the phases that have not completed yet, and show them."""
    entered, live = enter(job, unfinished, own=own, flow_run_id=flow_run_id), Live()
    run = entered.holding.run
    with (
        held(entered.holding, entered.job) as (_, stop),
        heeding_timeouts(stop.ask),
        reporting(run, stop.ask),
        serving(entered.job.metrics, run),
        shown(live),
    ):
        execute(entered, stop, live)
    return run


def _follow(begun: Begun) -> Run:
    """Show a run that another thread of this process executes; raises what that raised."""
    begun.is_followed.set()
    flow_run_id = _flow_run_id()
    if (
        flow_run_id is not None and not begun.live.is_over
    ):  # an ended run may belong to another process by now
        begun.run.belongs_to(flow_run_id)
    with reporting(begun.run, begun.stop.ask, begun.facts.passed_on):
        show(begun.live)
        begun.live.wait()
    if begun.live.error is not None:
        raise begun.live.error
    return begun.run


def _outcome(run: Run) -> list[dict[str, Any]]:
    """End the flow run as its run ended."""
    begun = sorted({phase["index"] for phase in run.record().get("phases", ())})
    summaries = [summary for index in begun if (summary := summary_of(run, index)) is not None]
    last = summaries[-1] if summaries else None
    reason = as_line(f"phase {last.phase}: {last.reason}" if last else f"run {run.run_id} is {run.status}")
    # Prefect takes a returned state for the end itself, with its message.
    match run.status:
        case "completed":
            data = [summary.to_json() for summary in summaries]
            state: State[Any] = Completed(message=completed_sentence(summaries), data=data)
        case "cancelled":
            state = Cancelled(message=f"Cancelled in {reason}.")
        case _:
            state = Failed(message=f"Gave up in {reason}.", data=RunFailedError(reason))
    return cast("list[dict[str, Any]]", state)
