"""What a person's answer makes of a decision: for each answer, to each kind of proposal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prefect_ft.decide import asks_before, decide, decide_with_answer
from prefect_ft.model import Answer, Decision, Entry, Incident, Policy

POLICY = Policy(systems=("s0", "s1", "s2"), workers=2, max_num_restarts=1)
LOST = Incident(t=10, kind="system_lost", attempt=1, system="s1", step=100)
WRONG = Incident(t=10, kind="exit", attempt=1, worker=0, failure_class="assertion", step=100)


def told(incident: Incident, policy: Policy = POLICY, **answer: Any) -> Decision:
    known = {"by": "ann", **answer}
    return decide_with_answer(policy, (Entry(incident=incident),), Answer(**known))


def shown(decision: Decision) -> tuple[Any, ...]:
    return decision.rule, decision.action, decision.isolate, decision.placement, decision.resume_step


@pytest.mark.parametrize(
    ("incident", "answer", "expected"),
    [
        pytest.param(
            LOST, {"answer": "approve"},
            ("node-lost", "isolate_and_rebuild", ("s1",), ("s0", "s2"), 100), id="isolation-approved",
        ),
        pytest.param(
            LOST, {"answer": "reject"}, ("node-lost", "rebuild", (), ("s0", "s1"), 100), id="isolation-rejected"
        ),
        pytest.param(
            LOST, {"answer": "change", "isolate": ("s0",)},
            ("node-lost", "isolate_and_rebuild", ("s0",), ("s2", "s1"), 100), id="another-system",
        ),
        pytest.param(
            LOST, {"answer": "change", "action": "fail"}, ("node-lost", "fail", (), ("s0", "s1"), None), id="give-up"
        ),
        pytest.param(
            WRONG, {"answer": "approve"}, ("non-recoverable", "fail", (), ("s0", "s1"), None), id="failure-approved"
        ),
        pytest.param(
            WRONG, {"answer": "reject"},
            ("non-recoverable", "restart_in_place", (), ("s0", "s1"), 100), id="failure-rejected",
        ),
        pytest.param(
            WRONG, {"answer": "change", "action": "rebuild"},
            ("non-recoverable", "rebuild", (), ("s0", "s1"), 100), id="rebuilt-instead",
        ),
    ],
)  # fmt: skip
def test_what_is_done_by_an_answer(
    incident: Incident, answer: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    decision = told(incident, **answer)
    assert shown(decision) == expected
    assert "by ann" in decision.reason


@pytest.mark.parametrize(
    ("incident", "answer", "why"),
    [
        pytest.param(LOST, {"answer": "approve"}, "approved by ann", id="approved"),
        pytest.param(WRONG, {"answer": "reject"}, "giving up rejected by ann", id="a-failure"),
        pytest.param(
            replace(LOST, systems=("s0", "s1")),
            {"answer": "reject"},
            "isolating s1 and s0 rejected by ann",
            id="an-isolation",
        ),
        pytest.param(
            Incident(t=10, kind="in_place_failed", worker=0),
            {"answer": "change", "action": "fail"},
            "decided by ann instead of rebuild",
            id="a-restart",
        ),
    ],
)
def test_a_reason_says_what_a_person_did_not_want(
    incident: Incident, answer: dict[str, Any], why: str
) -> None:
    assert why in told(incident, replace(POLICY, systems=("s0", "s1", "s2", "s3")), **answer).reason


def test_isolating_more_than_the_phase_can_spare_is_giving_up() -> None:
    small = Policy(systems=("s0", "s1"), workers=2, max_num_restarts=1, elastic=False)
    assert shown(told(WRONG, small, answer="change", isolate=("s0",)))[:2] == ("min-systems", "fail")


def test_a_restart_that_a_person_asked_for_is_counted_as_any_other() -> None:
    assert told(WRONG, answer="reject").counters.failures_without_progress == 1
    assert decide(POLICY, (Entry(incident=WRONG),)).counters.failures_without_progress == 0


@pytest.mark.parametrize(
    ("gated", "incident", "is_asked"),
    [
        ((), LOST, False),
        (("isolate",), LOST, True),
        (("fail",), LOST, False),
        (("fail",), WRONG, True),
        (("isolate",), WRONG, False),
        (("isolate", "fail"), Incident(t=1, kind="system_lost", system="s2"), False),
    ],
    ids=["nothing-asked", "isolation", "only-failures", "failure", "only-isolations", "training-goes-on"],
)
def test_what_is_asked_about(gated: Any, incident: Incident, is_asked: bool) -> None:
    assert asks_before(gated, decide(POLICY, (Entry(incident=incident),))) is is_asked
