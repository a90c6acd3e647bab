"""The fold of a phase's history to the situation at its last incident.

The effects of earlier decisions are taken from their records: nothing is decided a second time here.
"""

from __future__ import annotations

from collections.abc import Iterable

from prefect_ft.decide import rules
from prefect_ft.decide.placement import Pool
from prefect_ft.decide.resume import Checkpoints
from prefect_ft.decide.situation import Situation
from prefect_ft.model import Entry, Policy


def fold(policy: Policy, history: Iterable[Entry]) -> Situation:
    """Fold what has been decided; an incident without a decision had no effect."""
    situation = Situation(policy, Pool.at_start(policy), Checkpoints(policy.mode))
    effects = rules.TABLE.effects
    for entry in history:
        done = entry.decision
        if done is not None:
            situation.arrive(entry.incident, done.action == "continue")
            situation.settle(
                effects[done.rule],
                done.action,
                done.isolate,
                done.placement,
                resume_step=done.resume_step,
                windows=done.skip_steps,
            )
    return situation
