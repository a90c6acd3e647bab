"""A rank's place as hooks and rank assignments see it: among all ranks, and among those that run the function."""

from __future__ import annotations

import dataclasses
import enum
import os
from typing import Any, Iterable, Optional


class Mode(enum.Enum):
    """What a rank does in an iteration."""

    INITIALIZED = enum.auto()
    """Nothing yet: no rank assignment was made."""
    ACTIVE = enum.auto()
    """It runs the function."""
    INACTIVE = enum.auto()
    """It waits in reserve."""
    TERMINATED = enum.auto()
    """It no longer takes part."""


@dataclasses.dataclass
class State:
    """A rank's place.

    `rank` and `world_size` count all ranks that take part, `active_rank` and `active_world_size` those that run the
    function, `initial_rank` and `initial_world_size` those of the first iteration. `fn_exception` is what the function
    raised on this rank in this iteration.
    """

    rank: Optional[int]
    world_size: int
    active_rank: Optional[int] = None
    active_world_size: Optional[int] = None
    initial_rank: Optional[int] = None
    initial_world_size: Optional[int] = None
    iteration: int = 0
    mode: Mode = Mode.INITIALIZED
    fn_exception: Optional[BaseException] = None

    def __post_init__(self) -> None:
        self.initial_rank = self.rank if self.initial_rank is None else self.initial_rank
        self.initial_world_size = (
            self.world_size if self.initial_world_size is None else self.initial_world_size
        )

    @classmethod
    def from_env(cls) -> State:
        """Return the place that RANK and WORLD_SIZE name; that of a single rank if they are not set."""
        return cls(rank=int(os.environ.get("RANK", "0")), world_size=int(os.environ.get("WORLD_SIZE", "1")))

    def set_distributed_vars(self) -> None:
        """Set RANK and WORLD_SIZE for the function."""
        os.environ["RANK"], os.environ["WORLD_SIZE"] = str(self.active_rank), str(self.active_world_size)

    def advance(self) -> None:
        """Begin the next iteration."""
        self.iteration += 1
        self.fn_exception = None

    def freeze(self) -> FrozenState:
        """Return a copy that cannot be changed."""
        return FrozenState(**self._values())

    def copy_from(self, other: Any, fields: Optional[Iterable[str]] = None) -> None:
        """Take over another state's fields, all if none are named."""
        for name in self._values() if fields is None else fields:
            setattr(self, name, getattr(other, name))

    def _values(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class FrozenState:
    """A `State` that cannot be changed."""

    rank: Optional[int]
    world_size: int
    active_rank: Optional[int] = None
    active_world_size: Optional[int] = None
    initial_rank: Optional[int] = None
    initial_world_size: Optional[int] = None
    iteration: int = 0
    mode: Mode = Mode.INITIALIZED
    fn_exception: Optional[BaseException] = None
