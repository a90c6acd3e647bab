"""Runs one phase's attempts: what stands between the decisions and the agents."""

from prefect_ft.supervisor.comeback import comebacks_without_progress
from prefect_ft.supervisor.core import AttemptFailedError, Supervisor, describe
from prefect_ft.supervisor.launch import PhasePlan
from prefect_ft.supervisor.runlog import RunLog
from prefect_ft.supervisor.stopping import StopRequest

__all__ = [
    "AttemptFailedError",
    "PhasePlan",
    "RunLog",
    "StopRequest",
    "Supervisor",
    "comebacks_without_progress",
    "describe",
]
