"""What a person may decide instead: which decisions need approval, and how an answer changes a proposal.

The rule that proposed stays the decision's rule, and its counts stay: a person's answer adds nothing to the budgets.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from typing_extensions import assert_never

from prefect_ft.decide.after_checks import Proposal, min_systems
from prefect_ft.decide.moves import isolate_systems
from prefect_ft.decide.situation import Situation
from prefect_ft.model import Action, Answer, Decision, Gated


def asks_before(gated: Collection[Gated], decision: Decision) -> bool:
    """Return whether a decision waits for a person: only one that ends what runs, since training is not held up."""
    if decision.action == "continue":
        return False
    return ("isolate" in gated and bool(decision.isolate)) or ("fail" in gated and decision.action == "fail")


def answered(s: Situation, proposal: Proposal, answer: Answer) -> Proposal:
    """Return the proposal after a person's answer."""
    match answer.answer:
        case "approve":
            return replace(proposal, why=_with(proposal.why, f"approved by {answer.by}"))
        case "reject":
            action: Action = "rebuild" if proposal.isolate else "restart_in_place"
            why = f"{_named(proposal)} rejected by {answer.by}"
            return Proposal(proposal.rule, action, (), why)
        case "change":
            why = f"decided by {answer.by} instead of {_named(proposal)}"
            if answer.isolate:
                move = isolate_systems(s, answer.isolate)
                return min_systems(s, Proposal(proposal.rule, move.action, move.isolate, why))
            return Proposal(proposal.rule, answer.action or "fail", (), why)
        case _:
            assert_never(answer.answer)


def _named(proposal: Proposal) -> str:
    if proposal.isolate and proposal.action != "fail":
        return f"isolating {' and '.join(proposal.isolate)}"
    return "giving up" if proposal.action == "fail" else proposal.action


def _with(why: str, more: str) -> str:
    return f"{why}, {more}" if why else more
