"""Who runs the next iteration, and as which rank. Pure; every rank computes it and comes to the same.

An assignment takes the ranks that take part and gives those that run, in the order of their new numbers;
the others wait in reserve. `compose` puts several one after the other.
"""

from __future__ import annotations

from collections import Counter
from typing import Callable, List, NamedTuple, Optional, Sequence


class Member(NamedTuple):
    """A rank that takes part. `rank` is its number in the iteration before; None: it was in reserve.

    `key` is what the wrapper's `rank_key` gave there: its host, say.
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
    """Leave out groups of `size` processes (those of a node, say) that have lost one."""

    def assign(members: List[Member]) -> List[Member]:
        there = Counter(member.initial_rank // size for member in members)
        return [member for member in members if there[member.initial_rank // size] == size]

    return assign


def whole_keys(size: int) -> Assignment:
    """Leave out groups of ranks with one key (a host's, say) of which fewer than `size` are there."""

    def assign(members: List[Member]) -> List[Member]:
        there = Counter(member.key for member in members)
        return [member for member in members if there[member.key] >= size]

    return assign


def divisible_by(number: int) -> Assignment:
    """Let as many ranks run as can be divided by `number`, the first ones."""
    return lambda members: members[: len(members) // number * number]


def max_active(number: int) -> Assignment:
    """Let at most `number` ranks run, the first ones; the others are spares."""
    return lambda members: members[:number]


def compose(*assignments: Assignment) -> Assignment:
    """Put assignments one after the other; what one leaves out the next does not see."""

    def assign(members: List[Member]) -> List[Member]:
        for assignment in assignments:
            members = list(assignment(members))
        return members

    return assign
