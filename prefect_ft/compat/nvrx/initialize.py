"""The hook `initialize` of the wrapper."""

from __future__ import annotations

import abc
from typing import Optional

from prefect_ft.compat.nvrx.exception import RestartAbort
from prefect_ft.compat.nvrx.state import FrozenState


class Initialize(abc.ABC):
    """Called before each entry of the function, the first one too.

    An Exception restarts all ranks, RestartAbort ends them.
    """

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Return `state`, for the next one in a `Compose`."""


class RetryController(Initialize):
    """End all ranks after so many iterations, or with too few ranks; without `max_iterations` there is no limit."""

    def __init__(
        self,
        max_iterations: Optional[int] = None,
        min_world_size: int = 1,
        min_active_world_size: int = 1,
    ) -> None:
        self.max_iterations = max_iterations
        self.min_world_size, self.min_active_world_size = min_world_size, min_active_world_size

    def __call__(self, state: FrozenState) -> FrozenState:
        """Raise RestartAbort where there may be no further iteration."""
        if self.max_iterations is not None and state.iteration >= self.max_iterations:
            raise RestartAbort(f"iteration={state.iteration}, max_iterations={self.max_iterations}")
        if state.world_size < self.min_world_size:
            raise RestartAbort(f"{state.world_size} ranks are left, min_world_size is {self.min_world_size}")
        if (state.active_world_size or 0) < self.min_active_world_size:
            active, least = state.active_world_size, self.min_active_world_size
            raise RestartAbort(f"{active} ranks could run, min_active_world_size is {least}")
        return state
