"""The hook `completion` of the wrapper."""

from __future__ import annotations

import abc

from prefect_ft.compat.nvrx.state import FrozenState


class Completion(abc.ABC):
    """Called on each rank when all have completed the function."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Return `state`, for the next one in a `Compose`."""
