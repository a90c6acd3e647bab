"""Which ranks run the next iteration, under which numbers: assignments that change one rank's place.

Each is called with the context of one rank, as theirs. `Places` computes one wrapper's assignment for all ranks at
once, in each rank: ranks exchange as keys what it depends on and differs between them, such as a host's name.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections import Counter
from typing import Callable, List, Mapping, Optional

from prefect_ft.compat.nvrx.contexts import (
    KeyOrFn,
    RankAssignment,
    RankAssignmentCtx,
    RankDiscarded,
    RankFilter,
    key_of,
)
from prefect_ft.compat.nvrx.state import Mode, State
from prefect_ft.compat.nvrx.tree import Layer, LayerFlag, Tree

__all__ = [
    "ActivateAllRanks",
    "ActiveWorldSizeDivisibleBy",
    "FillGaps",
    "FilterCountGroupedByKey",
    "Layer",
    "LayerFlag",
    "MaxActiveWorldSize",
    "RankAssignment",
    "RankAssignmentCtx",
    "RankDiscarded",
    "RankFilter",
    "ShiftRanks",
    "Tree",
]


def _moved(ctx: RankAssignmentCtx, rank: int) -> RankAssignmentCtx:
    ctx.state = dataclasses.replace(
        ctx.state, rank=rank, world_size=ctx.state.world_size - len(ctx.terminated_ranks)
    )
    ctx.terminated_ranks = set()
    return ctx


def _own_rank(ctx: RankAssignmentCtx) -> int:
    rank = ctx.state.rank
    if rank is None or rank in ctx.terminated_ranks:
        raise RankDiscarded(f"rank {rank} is among those that are gone")
    return rank


class ShiftRanks(RankAssignment):
    """Close gaps by moving all later ranks down."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Raise RankDiscarded on a rank that is gone."""
        rank = _own_rank(ctx)
        return _moved(ctx, rank - sum(gone < rank for gone in ctx.terminated_ranks))


class FillGaps(RankAssignment):
    """Close gaps with the highest ranks that are left; the others keep their numbers.

    Theirs takes a gap for each number above the new world size, gone or not, and can give a rank the number of
    another, or one above the world size.
    """

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Raise RankDiscarded on a rank that is gone."""
        rank, gone = _own_rank(ctx), set(ctx.terminated_ranks)
        size = ctx.state.world_size - len(gone)
        if rank >= size:
            gaps = sorted(each for each in gone if each < size)
            movers = [each for each in range(size, ctx.state.world_size) if each not in gone]
            rank = gaps[movers.index(rank)]
        return _moved(ctx, rank)


class ActivateAllRanks(RankFilter):
    """Let all ranks run the function."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Return the context, changed."""
        return _limited(ctx, ctx.state.world_size)


class MaxActiveWorldSize(RankFilter):
    """Let at most the first so many ranks run; None: no limit."""

    def __init__(self, max_active_world_size: Optional[int] = None) -> None:
        self.max_active_world_size = max_active_world_size

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Return the context, changed."""
        size, limit = _could_run(ctx.state), self.max_active_world_size
        return _limited(ctx, size if limit is None else min(size, limit))


class ActiveWorldSizeDivisibleBy(RankFilter):
    """Let the first ranks run, as many as are divisible by `divisor`."""

    def __init__(self, divisor: int = 1) -> None:
        self.divisor = divisor

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Return the context, changed."""
        return _limited(ctx, _could_run(ctx.state) // self.divisor * self.divisor)


def _could_run(state: State) -> int:
    size = state.world_size
    return size if state.active_world_size is None else min(size, state.active_world_size)


def _limited(ctx: RankAssignmentCtx, size: int) -> RankAssignmentCtx:
    rank = ctx.state.rank
    is_active = rank is not None and rank < size
    ctx.state = dataclasses.replace(
        ctx.state,
        mode=Mode.ACTIVE if is_active else Mode.INACTIVE,
        active_rank=rank if is_active else None,
        active_world_size=size,
    )
    return ctx


class FilterCountGroupedByKey(RankAssignment):
    """Treat all ranks of a key as gone if their number does not meet a condition; another assignment moves the rest."""

    _numbers = itertools.count()

    def __init__(
        self,
        key_or_fn: KeyOrFn,
        condition: Callable[[int], bool],
        timeout: datetime.timedelta = datetime.timedelta(seconds=60),
    ) -> None:
        self.key_or_fn, self.condition, self.timeout = key_or_fn, condition, timeout
        self._name = f"filter-count/{next(self._numbers)}"
        self._calls = itertools.count()

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Count by the store, where every rank that is left calls this."""
        rank, store = ctx.state.rank, ctx.store
        if rank is None or rank in ctx.terminated_ranks:
            return ctx
        name, left = f"{self._name}/{next(self._calls)}", ctx.state.world_size - len(ctx.terminated_ranks)
        key = f"{name}/key/{key_of(self.key_or_fn, ctx.state)}"
        store.add(key, 1)
        store.barrier([rank], f"{name}/counted", left, self.timeout)
        if not self.condition(int(store.get(key))):
            store.append(f"{name}/gone", f"{rank},")
        store.barrier([rank], f"{name}/told", left, self.timeout)
        if store.check([f"{name}/gone"]):
            gone = store.get(f"{name}/gone").decode()
            ctx.terminated_ranks = {*ctx.terminated_ranks, *map(int, filter(None, gone.split(",")))}
        return ctx

    def keys(self, state: State) -> List[str]:
        """Return what a rank sends to the others for `assign_all`."""
        return [key_of(self.key_or_fn, state)]

    def assign_all(
        self,
        contexts: Mapping[int, RankAssignmentCtx],
        keys: Mapping[int, List[str]],
        first: Mapping[int, State],
    ) -> None:
        """Do for all ranks what a call does for one; `first` are their states at which they sent their keys."""
        known = {number: keys[number][0] for number in contexts}
        if callable(self.key_or_fn):
            same = all(key_of(self.key_or_fn, first[number]) == key for number, key in known.items())
            if same:  # it depends on the state alone, and that may have changed since
                known = {number: key_of(self.key_or_fn, ctx.state) for number, ctx in contexts.items()}
        there = {number for number, ctx in contexts.items() if ctx.state.rank not in ctx.terminated_ranks}
        counts = Counter(known[number] for number in there)
        gone = {contexts[number].state.rank for number in there if not self.condition(counts[known[number]])}
        for ctx in contexts.values():
            ctx.terminated_ranks = {*ctx.terminated_ranks, *(rank for rank in gone if rank is not None)}
