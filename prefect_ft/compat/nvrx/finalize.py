"""The hook `finalize` of the wrapper."""

from __future__ import annotations

import abc
import datetime
from typing import Any, Callable, Dict, Optional, Tuple

from prefect_ft.compat.nvrx.state import FrozenState
from prefect_ft.compat.nvrx.threads import call_in_time


class Finalize(abc.ABC):
    """Called after a fault, to bring this rank into a state in which the function can be entered.

    What it raises ends this rank.
    """

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Return `state`, for the next one in a `Compose`."""


class ThreadedFinalize(Finalize):
    """Call a function in a thread, with this rank's CUDA device if it has one; TimeoutError if it takes too long."""

    def __init__(
        self,
        timeout: datetime.timedelta,
        fn: Callable[..., Any],
        args: Optional[Tuple[Any, ...]] = (),
        kwargs: Optional[Dict[str, Any]] = None,
    ) -> None:
        self.timeout, self.fn = timeout, fn
        self.args, self.kwargs = args or (), kwargs or {}

    def __call__(self, state: FrozenState) -> FrozenState:
        """Raise what the function raised."""
        call_in_time(self.timeout, lambda: self.fn(*self.args, **self.kwargs))
        return state
