"""Executes a run: its phases one after the other, each attempt after attempt, whether a view follows or not."""

from __future__ import annotations

from prefect_ft.config import JobConfig
from prefect_ft.journal.summary import PhaseSummary
from prefect_ft.model import RESTARTS
from prefect_ft.orchestrate.earlier import summary_of
from prefect_ft.orchestrate.entering import Entered
from prefect_ft.orchestrate.live import Live, Stage
from prefect_ft.orchestrate.phase import PhaseExecution
from prefect_ft.orchestrate.placing import placed_on, tenancy_of
from prefect_ft.orchestrate.run import run_to_its_end
from prefect_ft.orchestrate.tenures import Tenancy
from prefect_ft.run import Holding
from prefect_ft.supervisor import AttemptFailedError, HandedOverError, StopRequest, Supervisor


def execute(entered: Entered, stop: StopRequest, live: Live) -> PhaseSummary:
    """Execute the phases that have not ended, and by hand those that have not completed; return the last one's end."""
    with live.ending():
        return run_to_its_end(entered.holding, stop, lambda: _execute_phases(entered, stop, live))


def _execute_phases(entered: Entered, stop: StopRequest, live: Live) -> PhaseSummary:
    job, holding, by_hand = entered
    for index in range(len(job.phases)):
        summary = summary_of(holding.run, index)
        if summary is None or summary.status == "running" or (by_hand and summary.status != "completed"):
            summary = _execute_phase(job, index, holding, stop, live, by_hand=by_hand)
        if summary.status != "completed" or index == len(job.phases) - 1:
            return summary
    raise AssertionError("a job has phases")


def _execute_phase(
    job: JobConfig, index: int, holding: Holding, stop: StopRequest, live: Live, *, by_hand: bool
) -> PhaseSummary:
    """Execute a phase to its end, in as many tenures as that takes."""
    while True:
        tenancy = tenancy_of(job, index, holding.run, stop)
        if tenancy is not None:
            tenancy.queue_successor()
        try:
            placed = placed_on(job, index, holding.run, tenancy)
            return _execute_in(tenancy, placed, index, holding, stop, live=live, by_hand=by_hand)
        except HandedOverError:
            if tenancy is None or not tenancy.leave(stop):
                raise
            cancelled = tenancy.cancelled() if stop.tenure_is_taken else None
            stop.take_over()
            if cancelled is not None:
                stop.ask(cancelled)  # it asks for no other systems; what ran has ended


def _execute_in(
    tenancy: Tenancy | None,
    job: JobConfig,
    index: int,
    holding: Holding,
    stop: StopRequest,
    *,
    live: Live,
    by_hand: bool,
) -> PhaseSummary:
    phase = PhaseExecution(job, index, holding, stop, tenancy)

    def run_attempts(supervisor: Supervisor) -> None:
        with live.stage(phase.plan.phase) as stage:
            _run_attempts(phase, supervisor, stage)

    return phase.execute(run_attempts, by_hand=by_hand)


def _run_attempts(phase: PhaseExecution, supervisor: Supervisor, stage: Stage) -> None:
    """Run attempts until a decision ends the phase."""
    while True:
        try:
            return supervisor.attempt()
        except AttemptFailedError as error:
            decision = phase.decide(error)
            stage.attempt_ended(error)
            if decision.action not in RESTARTS:
                return None
