"""The hook `terminate` of the wrapper."""

from __future__ import annotations

import abc

from prefect_ft.compat.nvrx.state import FrozenState


class Terminate(abc.ABC):
    """Called on a rank that ends without having completed."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Return `state`, for the next one in a `Compose`."""
