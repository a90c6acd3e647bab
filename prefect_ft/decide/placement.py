"""Systems and workers: which are usable, which are spare, and which the next gang uses.

Owns isolation with its expiry, shrinking and growing back. Decides nothing: it computes what an action
leads to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import inf

from typing_extensions import assert_never

from prefect_ft.model import Action, Policy

Gang = tuple[str, ...]
"""The system of each worker, by the worker's number."""


def initial_placement(policy: Policy) -> Gang | None:
    """Place the gang of a phase's first attempt; `None` where too few systems are usable to begin."""
    usable = policy.systems
    if policy.isolated:
        usable = tuple([name for name in policy.systems if name not in policy.isolated])
    gang = usable[: policy.workers]
    if len(gang) < policy.workers and not may_shrink_to(policy, len(gang)):
        return None
    return gang


def may_shrink_to(policy: Policy, workers: int) -> bool:
    """Return whether the phase may continue with a smaller gang of that size."""
    return policy.elastic and workers >= max(policy.min_num_systems, 1)


@dataclass(slots=True)
class Pool:
    """The systems of one phase while its history is folded.

    An isolation lasts `ttl_s`; none expires before `next_release_t`, in seconds since the phase began.
    """

    policy: Policy
    gang: Gang
    ttl_s: float
    next_release_t: float = inf
    _isolated_until: dict[str, float] = field(default_factory=dict)
    _avoided: tuple[str, ...] = ()
    """Systems that were left because of a suspicion: used as spares only after all others."""
    _left: tuple[str, ...] = ()
    """The gang's systems that are no longer in the pool."""

    @classmethod
    def at_start(cls, policy: Policy) -> Pool:
        """Begin a phase; when an earlier phase isolated a system is not known here, so it counts from now."""
        ttl_s = inf if policy.isolation_ttl_s is None else policy.isolation_ttl_s
        pool = cls(policy, initial_placement(policy) or (), ttl_s)
        if policy.isolated:
            pool.isolate(policy.isolated, 0.0)
        return pool

    def move_to(self, policy: Policy) -> None:
        """Replace the pool's systems by those of another pool; isolated ones stay isolated."""
        self.policy = policy
        self._left = tuple([name for name in self.gang if name not in policy.systems])

    def release_expired(self, now: float) -> list[str]:
        """Make systems usable whose isolation has expired, and return them."""
        isolated, self._isolated_until, next_release_t, expired = self._isolated_until, {}, inf, []
        for name, until in isolated.items():
            if now >= until:
                expired.append(name)
            else:
                self._isolated_until[name] = until
                if until < next_release_t:  # noqa: PLR1730  # calling min() costs as much as all the rest
                    next_release_t = until
        self.next_release_t = next_release_t
        return expired

    def isolate(self, systems: Collection[str], now: float) -> None:
        """Take systems out of use."""
        until = now + self.ttl_s
        for name in systems:
            self._isolated_until[name] = until
        if until < self.next_release_t:  # noqa: PLR1730  # calling min() costs as much as all the rest
            self.next_release_t = until

    def not_isolated(self, systems: Collection[str]) -> tuple[str, ...]:
        """Keep those that are still to be isolated."""
        return tuple([name for name in systems if name not in self._isolated_until])

    def count_usable(self, without: Collection[str]) -> int:
        """Count the systems that are not isolated, as if `without` were isolated too."""
        return len(set(self.policy.systems).difference(self._isolated_until, without))

    def spares(self, without: Collection[str] = ()) -> list[str]:
        """List the usable systems that have no worker, as if `without` were isolated too."""
        taken = {*self._isolated_until, *without, *self.gang}
        free = [name for name in self.policy.systems if name not in taken]
        return sorted(free, key=self._avoided.__contains__) if self._avoided else free

    def avoid(self, systems: Iterable[str]) -> None:
        """Take these systems as spares only where there are no others."""
        self._avoided = (*self._avoided, *systems)

    def can_replace(self, systems: Collection[str]) -> bool:
        """Return whether any worker is on these systems, and each of them could move to a spare."""
        displaced = len(set(self.gang).intersection(systems))
        return 0 < displaced <= len(self.spares(systems))

    def next_gang(self, action: Action, isolate: Collection[str], avoid: Collection[str] = ()) -> Gang:
        """Return the gang that an action leads to; without enough systems it is a smaller one.

        Workers on the systems to `avoid` take spares as if these were isolated.

        Workers that can stay do; the others take spares in the order of the pool, the lowest number first.
        Numbers are compacted where no spare could replace a worker. A rebuild fills the gang up to
        its configured size again.
        """
        match action:
            case "restart_in_place" | "complete" | "cancel" | "fail" | "continue":
                return self.gang
            case "replace_workers":
                return self._moved((*isolate, *avoid), self.gang)
            case "rebuild" | "isolate_and_rebuild":
                isolate = (*isolate, *avoid) if avoid else isolate
                isolate = (*isolate, *self._left) if self._left else isolate
                missing = self.policy.workers - len(self.gang)
                if not missing and not isolate:
                    return self.gang
                return self._moved(isolate, (*self.gang, *[None] * missing))
            case _:
                assert_never(action)

    def _moved(self, isolate: Collection[str], wanted: tuple[str | None, ...]) -> Gang:
        spares = iter(self.spares(isolate))
        seats = [next(spares, None) if name is None or name in isolate else name for name in wanted]
        return tuple(filter(None, seats))


def recreated(action: Action, before: Gang, after: Gang) -> tuple[int, ...]:
    """Return the numbers, in the next attempt, of the workers that the action recreates."""
    match action:
        case "restart_in_place" | "complete" | "cancel" | "fail" | "continue":
            return ()
        case "replace_workers":
            return tuple([worker for worker, name in enumerate(after) if before[worker] != name])
        case "rebuild" | "isolate_and_rebuild":
            return tuple(range(len(after)))
        case _:
            assert_never(action)
