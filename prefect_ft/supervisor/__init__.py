"""Runs one phase's attempts: the layer between the decisions and the agents."""

from prefect_ft.supervisor.comeback import comebacks_without_progress
from prefect_ft.supervisor.core import Supervisor
from prefect_ft.supervisor.failures import AttemptFailedError, HandedOverError, describe
from prefect_ft.supervisor.fault_sources import SourcePlan
from prefect_ft.supervisor.gate import AskPlan, Gate
from prefect_ft.supervisor.hangs import SuspensionPlan, pauses_in
from prefect_ft.supervisor.launch import PhasePlan, SavesPlan
from prefect_ft.supervisor.runlog import RunLog
from prefect_ft.supervisor.stopping import TIMED_OUT, HandOver, StopRequest
from prefect_ft.supervisor.upkeep import SystemPlan, UpkeepPlan
from prefect_ft.supervisor.values import WatchPlan

__all__ = [
    "TIMED_OUT",
    "AskPlan",
    "AttemptFailedError",
    "Gate",
    "HandOver",
    "HandedOverError",
    "PhasePlan",
    "RunLog",
    "SavesPlan",
    "SourcePlan",
    "StopRequest",
    "Supervisor",
    "SuspensionPlan",
    "SystemPlan",
    "UpkeepPlan",
    "WatchPlan",
    "comebacks_without_progress",
    "describe",
    "pauses_in",
]
