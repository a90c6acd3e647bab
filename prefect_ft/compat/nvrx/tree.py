"""Rank assignment by a tree of groups: hosts in racks in a cluster, say.

Each layer says how many ranks a group needs and may run, and whether its ranks replace one another.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
import itertools
import warnings
from bisect import bisect_left
from collections import defaultdict
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set

from prefect_ft.compat.nvrx.contexts import KeyOrFn, RankAssignment, RankAssignmentCtx, RankDiscarded, key_of
from prefect_ft.compat.nvrx.state import Mode, State


class LayerFlag(enum.Flag):
    """Which rank replaces an active one that is gone."""

    RESERVE = enum.auto()
    """A rank in reserve of the same group."""
    BACKFILL = enum.auto()
    """The active rank of the same group that has the highest number."""


@dataclasses.dataclass
class Layer:
    """One layer of groups.

    A group with fewer than `min_ranks` ranks left is given up. At most `max_ranks` of it run; None: all. `key_or_fn`
    gives the group of a rank.
    """

    min_ranks: int = 1
    max_ranks: Optional[int] = None
    key_or_fn: KeyOrFn = ""
    flag: Optional[LayerFlag] = None


class Leaf:
    """One rank; `groups` are those it is in, the outermost first."""

    def __init__(self, state: State, groups: Sequence[Group]) -> None:
        self.state, self.groups = state, tuple(groups)
        self.backfilled_in = self._outermost(LayerFlag.BACKFILL)

    def _outermost(self, flag: LayerFlag) -> Optional[Group]:
        """Return the outermost group that is reached from inside through groups with a flag alone."""
        found = None
        for group in reversed(self.groups):
            if not group.has(flag):
                break
            found = group
        return found

    def run(self, active_rank: int) -> None:
        """Run the function as that rank."""
        self.state.active_rank, self.state.mode = active_rank, Mode.ACTIVE
        self._leave_reserve()

    def rest(self) -> None:
        """Wait in reserve."""
        self.state.active_rank, self.state.mode = None, Mode.INACTIVE
        for group in self.groups:
            group.reserve[id(self)] = self

    def end(self) -> None:
        """Be gone. Its active rank stays until that is another's."""
        self.state.mode = Mode.TERMINATED
        self._leave_reserve()

    def _leave_reserve(self) -> None:
        for group in self.groups:
            group.reserve.pop(id(self), None)


class Group:
    """One group of ranks, and the groups in it."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.groups: Dict[str, Group] = {}
        self.own: List[Leaf] = []
        self.reserve: Dict[int, Leaf] = {}
        """Its ranks in reserve, the last to be asked first."""
        self.running = 0

    def has(self, flag: LayerFlag) -> bool:
        """Return whether the layer has a flag."""
        return self.layer.flag is not None and bool(self.layer.flag & flag)

    def leaves(self) -> Iterator[Leaf]:
        """Yield all its ranks, group after group."""
        yield from self.own
        for group in self.groups.values():
            yield from group.leaves()

    def give_up(self, gone: Set[int]) -> None:
        """Add all ranks of groups in which too few are left, from the innermost groups outwards."""
        for group in self.groups.values():
            group.give_up(gone)
        left = [leaf for leaf in self.leaves() if leaf.state.mode != Mode.TERMINATED]
        if sum(leaf.state.rank not in gone for leaf in left) < self.layer.min_ranks:
            gone.update(leaf.state.rank for leaf in left if leaf.state.rank is not None)


class Tree(RankAssignment):
    """Assigns ranks by groups of groups; cannot be composed with others.

    At first ranks run, group after group, as far as the `max_ranks` of all their groups allow. Of active ranks that
    are gone, each is replaced by a rank in reserve (RESERVE), else by the active one with the highest number
    (BACKFILL), of the closest group that has one; the numbers of all others move down. `world_size_filter` may let
    fewer run.
    """

    def __init__(self, layers: List[Layer], world_size_filter: Optional[Callable[[int], int]] = None) -> None:
        self.layers, self.world_size_filter = layers, world_size_filter
        self.init_rank_map: Dict[int, Leaf] = {}
        """Every rank by its first number."""
        self._root: Optional[Group] = None
        self._leaves: List[Leaf] = []

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Exchange keys by the store at the first call; raise RankDiscarded on a rank that is gone."""
        if self._root is None:
            state, store = ctx.state, ctx.store
            store.send_state(state, state.rank)
            store.send_key(self.keys(state), state.rank)
            everyone = range(state.world_size)
            self._build(store.get_states(everyone), store.get_keys(everyone))
        self._assign(ctx.terminated_ranks, ctx.state)
        return self._assignment(ctx)

    def keys(self, state: State) -> List[str]:
        """Return a rank's groups."""
        return [key_of(layer.key_or_fn, state) for layer in self.layers]

    def assign_all(
        self,
        contexts: Mapping[int, RankAssignmentCtx],
        keys: Mapping[int, List[str]],
        first: Mapping[int, State],
    ) -> None:
        """Do for all ranks what a call does for one; `first` are their states at the beginning."""
        if self._root is None:
            numbers = sorted(first)
            self._build([first[number] for number in numbers], [keys[number] for number in numbers])
        some = next(iter(contexts.values()))
        self._assign(some.terminated_ranks, some.state)
        for ctx in contexts.values():
            leaf = self.init_rank_map[_first(ctx.state)]
            if leaf.state.mode == Mode.TERMINATED:
                ctx.state = dataclasses.replace(ctx.state, mode=Mode.TERMINATED, active_rank=None)
            else:
                self._assignment(ctx)

    def _assignment(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        leaf = self.init_rank_map[_first(ctx.state)]
        if leaf.state.mode == Mode.TERMINATED:
            raise RankDiscarded(f"rank {ctx.state.rank} is gone, or too few of its group are left")
        ctx.state = dataclasses.replace(leaf.state)
        ctx.terminated_ranks = set()
        return ctx

    # -- the tree ---------------------------------------------------------------------------------

    def _build(self, states: Sequence[State], keys: Sequence[Sequence[object]]) -> None:
        roots = {key[0] for key in keys}
        if len(roots) != 1:
            raise RuntimeError(
                f"the first layer must have one key for all ranks, not {sorted(map(str, roots))}"
            )
        self._root = Group(self.layers[0])
        for state, names in zip(states, keys):
            groups = [self._root]
            for name, layer in zip(names[1:], self.layers[1:]):
                inner = groups[-1].groups.setdefault(str(name), Group(layer))
                groups.append(inner)
            leaf = Leaf(dataclasses.replace(state), groups)
            groups[-1].own.append(leaf)
            self.init_rank_map[_first(state)] = leaf
        self._leaves = list(self._root.leaves())
        if any(leaf.state.rank != place for place, leaf in enumerate(self._leaves)):
            warnings.warn("ranks are not numbered group after group", stacklevel=3)
        self._begin()

    def _begin(self) -> None:
        numbers = itertools.count()
        for leaf in self._leaves:
            limits = ((group.running, group.layer.max_ranks) for group in leaf.groups)
            if all(limit is None or running < limit for running, limit in limits):
                leaf.run(next(numbers))
                for group in leaf.groups:
                    group.running += 1
            else:
                leaf.rest()
        size = next(numbers)
        for leaf in self._leaves:
            leaf.state.active_world_size = size

    # -- ranks that are gone ----------------------------------------------------------------------

    def _assign(self, terminated: Set[int], state: State) -> None:
        assert self._root is not None
        for leaf in self._leaves:
            leaf.state.iteration, leaf.state.fn_exception = state.iteration, state.fn_exception
        gone = set(terminated)
        self._root.give_up(gone)
        ended = sorted(
            (leaf for leaf in self._leaves if leaf.state.rank in gone), key=lambda leaf: leaf.state.rank or 0
        )
        ran = [leaf for leaf in ended if leaf.state.mode == Mode.ACTIVE]
        for leaf in ended:
            leaf.end()
        self._shift([leaf for leaf in ran if not _replaced(leaf)])
        self._filter()
        self._number(state.world_size - len(ended))

    def _shift(self, ended: List[Leaf]) -> None:
        """Close the gaps of active ranks that no rank in reserve replaces."""
        vacant = sorted(self._backfilled(ended))
        for leaf in self._leaves:
            leaf.state.active_world_size = (leaf.state.active_world_size or 0) - len(ended)
            if leaf.state.active_rank is not None:
                leaf.state.active_rank -= bisect_left(vacant, leaf.state.active_rank)

    def _backfilled(self, ended: List[Leaf]) -> Iterator[int]:
        """Replace ranks by the highest active ones where their groups allow it; yield the vacant numbers."""
        in_group: Dict[int, List[Leaf]] = defaultdict(list)
        for leaf in ended:
            if leaf.backfilled_in is None:
                yield _active(leaf)
            else:
                in_group[id(leaf.backfilled_in)].append(leaf)
        for leaves in in_group.values():
            group = leaves[0].backfilled_in
            assert group is not None
            active = (leaf for leaf in group.leaves() if leaf.state.mode == Mode.ACTIVE)
            movers = heapq.nlargest(len(leaves), active, key=_active)[::-1]
            for mover, leaf in itertools.zip_longest(movers, leaves):
                yield _active(leaf if mover is None else mover)
                if mover is not None:
                    mover.state.active_rank = leaf.state.active_rank

    def _filter(self) -> None:
        if self.world_size_filter is None:
            return
        size = self.world_size_filter(self._leaves[0].state.active_world_size or 0)
        for leaf in self._leaves:
            leaf.state.active_world_size = size
            if leaf.state.mode == Mode.ACTIVE and _active(leaf) >= size:
                leaf.rest()

    def _number(self, world_size: int) -> None:
        """Number the remaining ranks; lost ones have no number."""
        numbers = itertools.count()
        for leaf in self._leaves:
            is_gone = leaf.state.mode == Mode.TERMINATED
            leaf.state.world_size = world_size
            leaf.state.rank = None if is_gone else next(numbers)
            if is_gone:
                leaf.state.active_rank = None


def _replaced(leaf: Leaf) -> bool:
    """Let a rank in reserve take a rank's place; return whether there was one."""
    for group in reversed(leaf.groups):
        if not group.has(LayerFlag.RESERVE):
            return False
        if group.reserve:
            group.reserve[next(reversed(group.reserve))].run(_active(leaf))
            return True
    return False


def _active(leaf: Leaf) -> int:
    assert leaf.state.active_rank is not None
    return leaf.state.active_rank


def _first(state: State) -> int:
    assert state.initial_rank is not None
    return state.initial_rank
