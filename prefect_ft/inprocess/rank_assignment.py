"""Which ranks run the next iteration, under which numbers. Pure; every rank computes the same result.

An assignment takes the ranks that take part and returns those that run, in the order of their new numbers;
the others wait in reserve. `compose` chains several.
"""

from __future__ import annotations

from collections import Counter
from typing import Callable, List, NamedTuple, Optional, Sequence


class Member(NamedTuple):
    """A rank that takes part. `rank` is its number in the iteration before; None: it was in reserve.

    `key` is what the wrapper's `rank_key` returned there: its host, for example.
    """

    initial_rank: int
    rank: Optional[int]
    key: Optional[str] = None


Assignment = Callable[[List[Member]], Sequence[Member]]


def shift_ranks(members: List[Member]) -> List[Member]:
    """Close gaps by moving all later ranks down; the reserve follows."""
    ran = sorted(
        (member for member in members if member.rank is not None), key=lambda member: member.rank or 0
    )
    return ran + [member for member in members if member.rank is None]


def fill_gaps(members: List[Member]) -> List[Member]:
    """Close gaps with the highest ranks and the reserve; all others keep their numbers."""
    places = {
        member.rank: member for member in members if member.rank is not None and member.rank < len(members)
    }
    stay = {member.initial_rank for member in places.values()}
    others = (member for member in shift_ranks(members) if member.initial_rank not in stay)
    return [places[number] if number in places else next(others) for number in range(len(members))]


def whole_groups(size: int) -> Assignment:
    """Leave out groups of `size` processes (for example a node's) that have lost one."""

    def assign(members: List[Member]) -> List[Member]:
        there = Counter(member.initial_rank // size for member in members)
        return [member for member in members if there[member.initial_rank // size] == size]

    return assign


def whole_keys(size: int) -> Assignment:
    """Leave out groups of ranks with one key (for example a host's) that have fewer than `size` left."""

    def assign(members: List[Member]) -> List[Member]:
        there = Counter(member.key for member in members)
        return [member for member in members if there[member.key] >= size]

    return assign


def divisible_by(number: int) -> Assignment:
    """Let the first ranks run, as many as are divisible by `number`."""
    return lambda members: members[: len(members) // number * number]


def max_active(number: int) -> Assignment:
    """Let at most the first `number` ranks run; the others are spares."""
    return lambda members: members[:number]


def compose(*assignments: Assignment) -> Assignment:
    """Chain assignments; each sees only the ranks that the one before keeps."""

    def assign(members: List[Member]) -> List[Member]:
        for assignment in assignments:
            members = list(assignment(members))
        return members

    return assign
