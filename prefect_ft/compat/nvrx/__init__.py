"""The interface of nvidia-resiliency-ext's in-process restart (`nvidia_resiliency_ext.inprocess`) on our engine.

A script changes one import: `from prefect_ft.compat import nvrx as inprocess`. Names, arguments and meaning are theirs
(NVIDIA, nvidia-resiliency-ext, main of 2026); docs/migrating.md lists the differences. Needs torch where they do.
"""

from prefect_ft.compat.nvrx import (
    abort,
    attribution,
    completion,
    exception,
    finalize,
    health_check,
    initialize,
    monitor_thread,
    nested_restarter,
    rank_assignment,
    state,
    store,
    terminate,
    wrap,
)
from prefect_ft.compat.nvrx.compose import Compose
from prefect_ft.compat.nvrx.state import FrozenState, Mode, State
from prefect_ft.compat.nvrx.wrap import CallWrapper, Wrapper

__all__ = [
    "CallWrapper",
    "Compose",
    "FrozenState",
    "Mode",
    "State",
    "Wrapper",
    "abort",
    "attribution",
    "completion",
    "exception",
    "finalize",
    "health_check",
    "initialize",
    "monitor_thread",
    "nested_restarter",
    "rank_assignment",
    "state",
    "store",
    "terminate",
    "wrap",
]
