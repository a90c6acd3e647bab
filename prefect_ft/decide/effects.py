"""What a decision by a rule does besides its action: to the budgets, and to where the phase resumes.

Owns the terms for it. A rule's row says which of them hold (`rules`), the folds apply them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from prefect_ft.model import RESTARTS, Action

NOTHING: frozenset[Action] = frozenset()
ALSO_STOPPED: frozenset[Action] = frozenset(get_args(Action))
"""The actions that count as failures: of a rule that costs nothing, and of one that stops restarts."""

Budget = Literal[
    "consecutive_suspensions",
    "consecutive_unconditional",
    "preemptions",
    "skips",
    "transient_since_progress",
    "confirmed_since_progress",
]
"""The further budgets in which restarts are counted, besides failures: `Budgets` owns most, `Skipping` the skips."""

StepBack = Literal["below_last", "set_aside", "to_start", "second_try", "last"]
"""Where a restart resumes: below the last checkpoint, and so do others until progress; without the unreadable one;
after a numeric failure where the failed attempt started, and so do others until progress. The last two are other places
for the first: not before the start of the failed attempt; the last checkpoint itself, unless others stay somewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The effects of one rule. The defaults are also those of a rule that this version does not know.

    `counted` are the actions that are a counted failure where the rule decides on them.
    """

    counted: frozenset[Action] = RESTARTS
    budget: Budget | None = None
    step_back: StepBack | None = None


ONLY_A_FAILURE = Effects()
