"""In-process restart: a function that all ranks run starts again on all of them, and no process ends.

The worker side: standard library only, Python 3.9 and newer, torch where it is installed.
"""

from prefect_ft.inprocess import abort, health_check, rank_assignment
from prefect_ft.inprocess.errors import (
    ExcludedError,
    HealthCheckError,
    HookTimeoutError,
    InProcessError,
    RestartAbort,
    StaleError,
    StoreLostError,
)
from prefect_ft.inprocess.state import CallWrapper, Fault, State
from prefect_ft.inprocess.wrapper import Wrapper

__all__ = [
    "CallWrapper",
    "ExcludedError",
    "Fault",
    "HealthCheckError",
    "HookTimeoutError",
    "InProcessError",
    "RestartAbort",
    "StaleError",
    "State",
    "StoreLostError",
    "Wrapper",
    "abort",
    "health_check",
    "rank_assignment",
]
