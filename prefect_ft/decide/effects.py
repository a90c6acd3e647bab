"""What a decision by a rule does beside its action: to the budgets, and to where the phase resumes.

Owns the words for it. A rule's row says which of them hold (`rules`), the folds apply them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prefect_ft.model import RESTARTS, Action

Cost = Literal["failure", "nothing", "stopped"]
"""A restart by the rule is a counted failure; is none; the rule stops a restart, which is counted all the same."""

Budget = Literal[
    "consecutive_suspensions",
    "consecutive_unconditional",
    "preemptions",
    "transient_since_progress",
    "confirmed_since_progress",
]
"""What else restarts by a rule are counted in: a field of `Budgets`, which owns what resets it."""

StepBack = Literal["below_last", "set_aside"]
"""Where a restart resumes: below the last checkpoint, and so do others until progress; without the unreadable one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The effects of one rule. The defaults are those of a rule that this version does not know, too."""

    cost: Cost = "failure"
    budget: Budget | None = None
    step_back: StepBack | None = None


ONLY_A_FAILURE = Effects()


def is_counted(effects: Effects, action: Action) -> bool:
    """Say whether a decision is a counted failure: its rule chose a restart, even if a check stopped it."""
    if action in RESTARTS:
        return effects.cost != "nothing"
    return effects.cost == "stopped"
