"""Phases that are run as Prefect and the retry handler would, and without them."""

from __future__ import annotations

from pathlib import Path

from prefect_ft.config import JobConfig
from prefect_ft.journal.judge import judge
from prefect_ft.journal.summary import PhaseSummary
from prefect_ft.model import RESTARTS
from prefect_ft.orchestrate.entering import Entered
from prefect_ft.orchestrate.executing import execute
from prefect_ft.orchestrate.live import Live
from prefect_ft.orchestrate.run import begin_run, held
from prefect_ft.run import vacancy
from prefect_ft.supervisor import AttemptFailedError, Supervisor


def to_the_end(supervisor: Supervisor) -> None:
    """Run all attempts, as Prefect and the retry handler do."""
    while True:
        try:
            return supervisor.attempt()
        except AttemptFailedError as error:
            decision = error.decision or judge(
                supervisor.journal, supervisor.plan.policy, error.incident, supervisor.clock, **error.facts
            )
            if decision.action not in RESTARTS:
                return None


def run_of_one_phase(job: JobConfig) -> PhaseSummary:
    """Begin a run, and bring its only phase to an end."""
    entered = Entered(job, begin_run(job, vacancy(Path(job.model_dir))))
    with held(entered.holding, job) as (_, stop):
        return execute(entered, stop, Live())
