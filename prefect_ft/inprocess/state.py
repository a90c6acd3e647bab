"""What hooks and the wrapped function get: the rank's place in an iteration, and why the last one ended."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Iterator, List, NamedTuple, Optional

from prefect_ft.heartbeat import beat
from prefect_ft.inprocess.client import Address, Store
from prefect_ft.inprocess.interrupt import Interrupter
from prefect_ft.inprocess.progress import Progress


class Fault(NamedTuple):
    """Why an iteration ended. `kind` is `exception`, `exit`, `hang`, `lost`, `left` or `completion_timeout`.

    `rank` is the number that the rank had when the processes started; None: no single one.
    """

    rank: Optional[int]
    kind: str
    text: str


class State(NamedTuple):
    """A rank's place. `rank` is None for a rank in reserve, and before the first iteration.

    `initial_rank` and `initial_world_size` are those of the processes, `rank` and `world_size` those of
    this iteration. `fault` ended the iteration before; None: this is the first.
    """

    iteration: int
    initial_rank: int
    initial_world_size: int
    rank: Optional[int]
    world_size: int
    fault: Optional[Fault]

    def export(self) -> None:
        """Set RANK and WORLD_SIZE for the function and its children."""
        if self.rank is not None:
            os.environ["RANK"], os.environ["WORLD_SIZE"] = str(self.rank), str(self.world_size)


class CallWrapper:
    """The wrapped function's handle on its iteration; it is given to the parameter that is annotated with it."""

    def __init__(
        self,
        state: State,
        progress: Optional[Progress] = None,
        interrupter: Optional[Interrupter] = None,
        address: Optional[Address] = None,
        store_timeout_s: float = 0.0,
    ) -> None:
        """With only `state`, nothing restarts and the handle does nothing."""
        self.state = state
        self._progress, self._interrupter = progress, interrupter
        self._address, self._store_timeout_s = address, store_timeout_s
        self._torch_stores: List[Any] = []
        """Torch keeps only the native part of a store, which calls what is written in Python."""

    @property
    def iteration(self) -> int:
        """How often the function has been re-entered: 0 at first."""
        return self.state.iteration

    @property
    def rank(self) -> int:
        """This rank's number in this iteration."""
        assert self.state.rank is not None  # a rank in reserve does not enter the function
        return self.state.rank

    @property
    def world_size(self) -> int:
        """How many ranks run this iteration."""
        return self.state.world_size

    def ping(self, step: Optional[int] = None) -> None:
        """Report progress; takes less than a microsecond.

        Once called in an iteration, it must be called at least every `soft_timeout`. With `step`
        only a step above the last one counts, and restarts without a new highest step are counted. It is
        also a heartbeat.
        """
        if self._progress is not None:
            self._progress.ping(step)
        beat(step)

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        """Delay a restart until the block is left; for work that must not be left half done. Main thread only."""
        if self._interrupter is None:
            yield
        else:
            with self._interrupter.atomic():
                yield

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """Suspend timeouts until the block is left; for work that takes long and is known to end."""
        if self._progress is None:
            yield
            return
        self._progress.unwatched()
        try:
            yield
        finally:
            self._progress.watched()

    def store(self) -> Store:
        """Return keys that all ranks of this iteration share; close them when done. Raises as `Store`."""
        if self._address is None:
            raise RuntimeError("there is no store: the wrapper is not enabled")
        return Store(self._address, self.iteration, self._store_timeout_s)

    def torch_store(self) -> Any:
        """Return a store for `torch.distributed.init_process_group`: a new one in each iteration, on no rank.

        It lives as long as this handle.
        """
        from prefect_ft.inprocess.torch_store import torch_store  # noqa: PLC0415  (torch may not be there)

        self._torch_stores.append(torch_store(self.store()))
        return self._torch_stores[-1]
