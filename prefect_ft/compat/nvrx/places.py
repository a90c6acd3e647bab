"""The places of all ranks of one call, as one rank computes them; every rank gets the same."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Callable, Dict, List, Sequence

from prefect_ft.compat.nvrx.compose import Compose
from prefect_ft.compat.nvrx.contexts import RankAssignmentCtx, RankDiscarded
from prefect_ft.compat.nvrx.rank_assignment import ActivateAllRanks
from prefect_ft.compat.nvrx.state import FrozenState, Mode, State
from prefect_ft.inprocess.rank_assignment import Member

Assignment = Callable[[RankAssignmentCtx], RankAssignmentCtx]


class Places:
    """All ranks' states by their first numbers, from one iteration to the next."""

    def __init__(self, assignment: Assignment, rank: int, size: int) -> None:
        self._parts = _parts_of(assignment)
        self._rank = rank
        self._states = {number: State(number, size) for number in range(size)}

    def own(self, iteration: int) -> FrozenState:
        """Return this rank's place in an iteration."""
        return dataclasses.replace(self._states[self._rank].freeze(), iteration=iteration)

    def failed(self, exc: BaseException | None) -> None:
        """Note what the function raised here; None: it is entered."""
        self._states[self._rank].fn_exception = exc

    def keys(self) -> str:
        """Return what this rank sends to all others before an assignment, as JSON."""
        own = self._states[self._rank]
        return json.dumps([part.keys(own) if hasattr(part, "keys") else [] for part in self._parts])

    def assign(self, members: Sequence[Member]) -> List[Member]:
        """Return those that run, in the order of their new numbers. Raises what an assignment raises."""
        there = {member.initial_rank: member for member in members}
        taking_part = {n: s for n, s in self._states.items() if s.mode != Mode.TERMINATED}
        gone = {s.rank for n, s in taking_part.items() if n not in there and s.rank is not None}
        contexts = {
            n: RankAssignmentCtx(dataclasses.replace(s), None, set(gone))
            for n, s in taking_part.items()
            if n in there
        }
        keys = {n: json.loads(there[n].key or "[]") for n in contexts}
        self._run(contexts, keys)
        for ctx in contexts.values():
            if ctx.state.mode == Mode.INITIALIZED:  # an assignment that does not set it lets all run
                ActivateAllRanks()(ctx)
        for number, state in self._states.items():
            if number in contexts:
                self._states[number] = contexts[number].state
            else:
                state.mode, state.rank, state.active_rank = Mode.TERMINATED, None, None
        active = [(ctx.state.active_rank, there[n]) for n, ctx in contexts.items()]
        return [member for _, member in sorted((rank, member) for rank, member in active if rank is not None)]

    def _run(self, contexts: Dict[int, RankAssignmentCtx], keys: Dict[int, List[List[str]]]) -> None:
        first = {number: dataclasses.replace(ctx.state) for number, ctx in contexts.items()}
        left = dict(contexts)
        for place, part in enumerate(self._parts):
            if hasattr(part, "assign_all"):
                part.assign_all(left, {number: keys[number][place] for number in left}, first)
            else:
                for number, ctx in left.items():
                    contexts[number] = _called(part, ctx)
            left = {n: contexts[n] for n in left if contexts[n].state.mode != Mode.TERMINATED}
            if not left:
                return


def _called(part: Assignment, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
    try:
        return part(ctx)
    except RankDiscarded:
        ctx.state = dataclasses.replace(ctx.state, mode=Mode.TERMINATED, rank=None, active_rank=None)
        return ctx


def _parts_of(assignment: Assignment) -> List[Any]:
    """Return the assignments that one is composed of, in the order in which they are called."""
    if not isinstance(assignment, Compose):
        return [assignment]
    return [part for each in reversed(assignment.instances) for part in _parts_of(each)]
