"""The argument and the base class of every rank assignment."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Callable, Set, Union

from prefect_ft.compat.nvrx.exception import RestartError
from prefect_ft.compat.nvrx.state import State

KeyOrFn = Union[str, int, Callable[[State], Any]]


class RankDiscarded(RestartError):  # noqa: N818  (the name that users know)
    """This rank no longer takes part."""


@dataclasses.dataclass
class RankAssignmentCtx:
    """What an assignment reads and changes: one rank's state, a store, and the ranks that are gone."""

    state: State
    store: Any
    terminated_ranks: Set[int]


class RankAssignment(abc.ABC):
    """Changes one rank's place; raises RankDiscarded where it has none."""

    @abc.abstractmethod
    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Return the context, changed."""


class RankFilter(RankAssignment):
    """Chooses which ranks run the function; the others wait in reserve."""


def key_of(key_or_fn: KeyOrFn, state: State) -> str:
    """Return a rank's key."""
    return str(key_or_fn(state) if callable(key_or_fn) else key_or_fn)
