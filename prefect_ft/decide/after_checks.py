"""What a restart has to pass after a rule has chosen it: docs/recovery-policy.md, "After-checks".

Owns their conditions and their order. Each takes a proposal and gives back one, the same or another.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefect_ft.decide.budgets import is_counted
from prefect_ft.decide.incidents import suspected_systems
from prefect_ft.decide.moves import isolate_systems
from prefect_ft.decide.placement import may_shrink_to
from prefect_ft.decide.situation import Situation
from prefect_ft.model import RESTARTS, Action


@dataclass(slots=True)
class Proposal:
    """A decision that is being made; `why` goes into its reason."""

    rule: str
    action: Action
    isolate: tuple[str, ...]
    why: str


def suspect(s: Situation, proposal: Proposal) -> Proposal:
    """Isolate a system that too many failures blame, if a spare can take its worker over."""
    if proposal.isolate:
        return proposal
    counted = is_counted(proposal.rule, proposal.action)
    for system in suspected_systems(s.incident, s.policy, s.pool.gang):
        count = s.budgets.suspects.get(system, 0) + counted
        if count >= s.policy.suspect_limit and s.pool.can_replace((system,)):
            move = isolate_systems(s, (system,))
            why = f"{system} is suspect after {count} failures"
            return Proposal(proposal.rule, move.action, move.isolate, why)
    return proposal


def max_restarts(s: Situation, proposal: Proposal) -> Proposal:
    """Fail upon the counted failure that is one too many."""
    left = s.policy.max_num_restarts - s.budgets.failures_without_progress
    if left > 0 or not is_counted(proposal.rule, proposal.action):
        return proposal
    return Proposal("max-restarts", "fail", proposal.isolate, "max_num_restarts is used up")


def min_systems(s: Situation, proposal: Proposal) -> Proposal:
    """Fail where the gang would have to shrink further than it may; only isolation makes it shrink."""
    if not proposal.isolate:
        return proposal
    usable = s.pool.count_usable(without=proposal.isolate)
    if usable >= len(s.pool.gang) or may_shrink_to(s.policy, usable):
        return proposal
    needed = s.policy.min_num_systems if s.policy.elastic else len(s.pool.gang)
    why = f"only {usable} of the {needed} systems that it needs are usable"
    return Proposal("min-systems", "fail", proposal.isolate, why)


AFTER_CHECKS = (suspect, max_restarts, min_systems)
"""In their order; the backoff, which is the last of them, changes no decision."""


def check(s: Situation, proposal: Proposal) -> Proposal:
    """Take a proposal through all after-checks, as long as it is a restart."""
    for after_check in AFTER_CHECKS:
        if proposal.action not in RESTARTS:
            break
        proposal = after_check(s, proposal)
    return proposal


def backoff_s(s: Situation, proposal: Proposal) -> float:
    """Say how many seconds a restart waits: twice as long for each further failure without progress."""
    base_s = s.policy.restart_delay_s
    if not base_s or proposal.action not in RESTARTS or not is_counted(proposal.rule, proposal.action):
        return 0.0
    # No policy allows more than 128 restarts, and 2**128 is far from overflow.
    doubled = base_s * 2.0 ** min(s.budgets.failures_without_progress, 128)
    return min(doubled, s.policy.max_restart_delay_s)
