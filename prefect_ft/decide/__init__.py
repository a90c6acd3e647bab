"""What to do about a failure: pure functions of a policy and a history.

Nothing here reads a clock, a file or a process, and nothing logs: the result contains the reason.
"""

from __future__ import annotations

from prefect_ft.decide.advice import advised, is_in_doubt
from prefect_ft.decide.budgets import limits_of
from prefect_ft.decide.environment import set_aside, skip_eval_at, start_counts
from prefect_ft.decide.gate import asks_before
from prefect_ft.decide.incidents import is_report, with_verdict
from prefect_ft.decide.placement import initial_placement
from prefect_ft.decide.policy import InTurn, decide, decide_with_answer

__all__ = [
    "InTurn",
    "advised",
    "asks_before",
    "decide",
    "decide_with_answer",
    "initial_placement",
    "is_in_doubt",
    "is_report",
    "limits_of",
    "set_aside",
    "skip_eval_at",
    "start_counts",
    "with_verdict",
]
