"""Checks of a restart after a rule has chosen it: docs/recovery-policy.md, "After-checks".

Owns their conditions and their order. Each takes a proposal and returns it, or another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefect_ft.amounts import count
from prefect_ft.decide.effects import StepBack
from prefect_ft.decide.incidents import suspected_systems
from prefect_ft.decide.moves import isolate_systems
from prefect_ft.decide.placement import may_shrink_to
from prefect_ft.decide.rules import MAX_RESTARTS, MIN_SYSTEMS, Rule
from prefect_ft.decide.situation import Situation
from prefect_ft.model import RESTARTS, Action


@dataclass(slots=True)
class Proposal:
    """A decision that is being made; `why` goes into its reason."""

    rule: Rule
    action: Action
    isolate: tuple[str, ...]
    why: str
    avoid: tuple[str, ...] = ()
    step_back: StepBack | None = None


def suspect(s: Situation, proposal: Proposal) -> Proposal:
    """Isolate a system that too many failures blame, if a spare can take over its worker."""
    if proposal.isolate:
        return proposal
    for system in suspected_systems(s.incident, s.policy, s.pool.gang):
        failures = s.budgets.suspects.get(system, 0) + (proposal.action in proposal.rule.effects.counted)
        if failures >= s.policy.suspect_limit and s.pool.can_replace((system,)):
            move = isolate_systems(s, (system,))
            why = f"{system} is suspect after {count(failures, 'failure')}"
            return Proposal(proposal.rule, move.action, move.isolate, why)
    return proposal


def last_system(s: Situation, proposal: Proposal) -> Proposal:
    """Keep a system without which too few are left, if the policy says so; never fails the phase or renames the rule.

    Where workers could not be created there is nothing to restart in place.
    """
    if s.policy.last_system == "fail" or not proposal.isolate or _are_enough(s, proposal.isolate):
        return proposal
    usable, names = s.pool.count_usable(without=proposal.isolate), " and ".join(proposal.isolate)
    if not usable:
        what = "is the last usable system" if len(proposal.isolate) == 1 else "are the last usable systems"
        why = f"{names} {what}: kept"
    else:
        why = f"{names} kept, without it {usable} of the {count(_needed(s), 'system')} that it needs would be usable"
    action: Action = "rebuild" if s.incident.kind == "rebuild_failed" else "restart_in_place"
    return Proposal(proposal.rule, action, (), why)


def max_restarts(s: Situation, proposal: Proposal) -> Proposal:
    """Fail at the counted failure that exceeds the limit."""
    left = s.policy.max_num_restarts - s.budgets.failures_without_progress
    if left > 0 or proposal.action not in proposal.rule.effects.counted:
        return proposal
    return _stopped(s, proposal, MAX_RESTARTS, "max_num_restarts is used up")


def min_systems(s: Situation, proposal: Proposal) -> Proposal:
    """Fail where the gang would have to shrink below its minimum: systems are isolated, or the pool has changed."""
    if not (proposal.isolate or s.incident.kind == "handed_over") or _are_enough(s, proposal.isolate):
        return proposal
    usable = s.pool.count_usable(without=proposal.isolate)
    why = f"only {usable} of the {count(_needed(s), 'system')} that it needs are usable"
    return _stopped(s, proposal, MIN_SYSTEMS, why)


def _stopped(s: Situation, proposal: Proposal, rule: Rule, why: str) -> Proposal:
    return Proposal(rule, rule.then(s).action, proposal.isolate, why)


def _are_enough(s: Situation, isolate: tuple[str, ...]) -> bool:
    """Return whether enough systems are left without these, for the gang as it is or a smaller one."""
    usable = s.pool.count_usable(without=isolate)
    return usable >= len(s.pool.gang) or may_shrink_to(s.policy, usable)


def _needed(s: Situation) -> int:
    return s.policy.min_num_systems if s.policy.elastic else len(s.pool.gang)


AFTER_CHECKS = (suspect, last_system, max_restarts, min_systems)
"""The checks in order; the backoff, which comes last, changes no decision."""


def check(s: Situation, proposal: Proposal) -> Proposal:
    """Take a proposal through all after-checks, as long as it is a restart."""
    for after_check in AFTER_CHECKS:
        if proposal.action not in RESTARTS:
            break
        proposal = after_check(s, proposal)
    return proposal


def backoff_s(s: Situation, proposal: Proposal) -> float:
    """Return how many seconds a restart waits: twice as long for each further failure without progress."""
    base_s = s.policy.restart_delay_s
    if not base_s or proposal.action not in RESTARTS or proposal.action not in proposal.rule.effects.counted:
        return 0.0
    # No policy allows more than 128 restarts, and 2**128 is far from overflow.
    doubled = base_s * 2.0 ** min(s.budgets.failures_without_progress, 128)
    return min(doubled, s.policy.max_restart_delay_s)
