"""Failures that are bound to their step, the steps that are skipped for them, and what another step proves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_ft.decide import decide
from prefect_ft.decide.skipping import merged
from prefect_ft.model import Decision, Entry, History, Incident, Policy

POLICY = Policy(systems=("s0", "s1", "s2"), workers=2, max_num_restarts=20, suspect_limit=99)
SKIPPING = replace(POLICY, skip_steps=20)

Decisions = Callable[..., list[Decision]]


def failed(
    failure_class: str, reached: int | None = None, step: int | None = None, **fields: Any
) -> dict[str, Any]:
    known = {"reached": reached, "step": step, **fields}
    told = {name: value for name, value in known.items() if value is not None}
    return {"kind": "exit", "class": failure_class, "exit_code": 1, **told}


def nan(reached: int | None, step: int | None = 200, **fields: Any) -> dict[str, Any]:
    return failed("numeric", reached, step, **fields)


def data(reached: int | None, step: int | None = 200, **fields: Any) -> dict[str, Any]:
    return failed("data", reached, step, **fields)


SAVED = [failed("network", 150, 100), failed("network", 210, 200)]
"""After it there are checkpoints of the steps 100 and 200, and the next attempt starts from 200."""


def rules_of(told: list[Decision]) -> list[str]:
    return [f"{each.rule}: {each.action}" for each in told]


BACK, GIVEN_UP, SKIPPED = "numeric: restart_in_place", "numeric: fail", "skip-steps: restart_in_place"


@pytest.mark.parametrize(
    ("lines", "ends"),
    [
        pytest.param([*SAVED, nan(233), nan(233)], [BACK, GIVEN_UP], id="from-another-checkpoint"),
        pytest.param([*SAVED, nan(233), nan(234)], [BACK, BACK], id="at-another-step"),
        pytest.param([*SAVED, nan(None), nan(233)], [BACK, BACK], id="the-earlier-step-unknown"),
        pytest.param([*SAVED, nan(233), nan(None)], [BACK, BACK], id="its-own-step-unknown"),
        pytest.param(
            [*SAVED, nan(233), nan(233, started_from=200)], [BACK, BACK], id="really-from-the-same-checkpoint"
        ),
        pytest.param(
            [*SAVED, nan(233), nan(240), nan(233)],
            [BACK, BACK, GIVEN_UP],
            id="not-the-last-one-but-an-earlier",
        ),
        pytest.param([nan(33, None), nan(33, None)], [BACK, GIVEN_UP], id="from-scratch-both-times"),
        pytest.param(
            [*SAVED, nan(233), nan(303, 300), nan(233, 300)], [BACK, BACK, BACK], id="progress-forgets-it"
        ),
        pytest.param([*SAVED, data(233), nan(233)], [BACK], id="another-class"),
    ],
)
def test_numbers_that_go_bad_at_their_step_are_no_matter_of_the_checkpoint(
    decisions: Decisions, lines: list[dict[str, Any]], ends: list[str]
) -> None:
    assert rules_of(decisions(POLICY, *lines))[-len(ends) :] == ends


@pytest.mark.parametrize(
    ("policy", "lines", "windows"),
    [
        pytest.param(SKIPPING, [nan(233), nan(233)], [(), ((215, 234),)], id="the-steps-up-to-the-next"),
        pytest.param(
            SKIPPING, [nan(233)] * 3, [(), ((215, 234),), ((195, 234),)], id="twice-as-many-the-next-time"
        ),
        pytest.param(
            SKIPPING,
            [nan(233), nan(233), nan(300), nan(300)],
            [(), ((215, 234),), ((215, 234),), ((215, 234), (262, 301))],
            id="windows-add-up",
        ),
        pytest.param(SKIPPING, [nan(110), nan(110)], [(), ((101, 111),)], id="none-before-the-start"),
        pytest.param(
            SKIPPING,
            [nan(230, reached_every=10), nan(230, reached_every=10)],
            [(), ((221, 240),)],
            id="up-to-the-next-report",
        ),
        pytest.param(
            SKIPPING,
            [nan(233), nan(233), failed("network", 240, 200), nan(301, 300)],
            [(), ((215, 234),), ((215, 234),), ((215, 234),)],
            id="in-force-whatever-comes",
        ),
        pytest.param(
            SKIPPING, [data(233), data(233)], [(), ((215, 234),)], id="data-from-the-same-checkpoint"
        ),
        pytest.param(SKIPPING, [data(201), data(201)], [(), ((201, 202),)], id="data-after-its-start"),
        pytest.param(
            SKIPPING, [failed("unknown", 233, 200)] * 2, [(), ()], id="not-for-failures-of-other-classes"
        ),
        pytest.param(POLICY, [data(233), data(233)], [(), ()], id="not-unless-it-is-asked-for"),
    ],
)
def test_which_steps_are_skipped(
    decisions: Decisions, policy: Policy, lines: list[dict[str, Any]], windows: list[Any]
) -> None:
    assert [each.skip_steps for each in decisions(policy, *SAVED, *lines)[2:]] == windows


def test_no_step_before_the_start_of_the_next_attempt_is_skipped(decisions: Decisions) -> None:
    """It reached the step from which the next attempt starts: there is nothing before it."""
    *_, last = decisions(SKIPPING, *SAVED, data(198), data(198))
    assert (last.rule, last.skip_steps) == ("transient", ())


def test_from_where_an_attempt_starts_that_skips(decisions: Decisions) -> None:
    """After bad numbers from where the failed attempt started, and others stay there; after bad data from the last."""
    told = decisions(SKIPPING, *SAVED, nan(233), nan(233), failed("network", 150, 200), nan(401, 400))
    assert [each.resume_step for each in told[2:]] == [100, 100, 100, 200]
    told = decisions(SKIPPING, *SAVED, data(233), data(233), failed("network", 250, 200))
    assert [each.resume_step for each in told[2:]] == [200, 200, 200]


def test_skips_have_a_limit_without_progress(decisions: Decisions) -> None:
    told = rules_of(decisions(replace(SKIPPING, max_skips=2), *SAVED, *[nan(233)] * 4))
    assert told[2:] == [BACK, SKIPPED, SKIPPED, GIVEN_UP]
    told = rules_of(decisions(replace(SKIPPING, max_skips=1, stop_on_repeat=0), *SAVED, *[data(233)] * 3))
    assert told[3:] == [SKIPPED, "transient: rebuild"]


def test_skips_have_a_limit_in_a_phase_that_progress_does_not_lift(decisions: Decisions) -> None:
    lines = [line for step in (300, 400, 500) for line in (data(step + 33, step), data(step + 33, step))]
    told = rules_of(decisions(replace(SKIPPING, max_skips_per_phase=2), *lines))
    assert [rule == SKIPPED for rule in told] == [False, True, False, True, False, False]


@pytest.mark.parametrize("failure_class", ["numeric", "data"])
def test_nothing_is_skipped_where_only_the_environment_is_restarted(
    decisions: Decisions, failure_class: str
) -> None:
    policy = replace(SKIPPING, environment_only=True, restart_on=frozenset(("network",)))
    assert decisions(policy, failed(failure_class, 33, None))[0].rule == "not-restartable"


def test_a_skip_that_the_budget_stops_skips_nothing(decisions: Decisions) -> None:
    *_, last = decisions(replace(SKIPPING, max_num_restarts=2), *SAVED, nan(233), nan(233))
    assert (last.rule, last.action, last.skip_steps) == ("max-restarts", "fail", ())


def test_the_reason_names_the_steps(decisions: Decisions) -> None:
    *_, last = decisions(SKIPPING, *SAVED, nan(233), nan(233))
    assert "skip 1 of 3" in last.reason
    assert "failed at step 233 again, steps 215 to 234 are skipped" in last.reason


# -- what another step proves -----------------------------------------------------------------------


def crash(reached: int | None) -> dict[str, Any]:
    return failed("crash", reached, 100, signature="c")


@pytest.mark.parametrize(
    ("steps", "is_last_repeated"),
    [
        pytest.param([113, 113, 113], True, id="at-the-same-step"),
        pytest.param([113, 113, 114], False, id="at-another-in-the-end"),
        pytest.param([112, 113, 113], False, id="at-another-at-first"),
        pytest.param([None, None, None], True, id="all-unknown"),
        pytest.param([113, None, 113], True, id="each-is-held-against-the-one-before-it-alone"),
        pytest.param([113, None, 114], True, id="even-if-the-ends-differ"),
    ],
)
def test_a_failure_at_another_step_is_not_the_same(
    decisions: Decisions, steps: list[int | None], is_last_repeated: bool
) -> None:
    *_, last = decisions(POLICY, *[crash(step) for step in steps])
    assert (last.rule == "repeated-failure") is is_last_repeated


@pytest.mark.parametrize(
    ("steps", "is_last_confirmed"),
    [
        pytest.param([130, 130], True, id="at-the-same-step"),
        pytest.param([130, 171], False, id="at-another"),
        pytest.param([130, 171, 130], True, id="at-an-earlier-one"),
        pytest.param([130, 171, 144], False, id="at-a-third"),
        pytest.param([None, 171], True, id="the-earlier-unknown"),
        pytest.param([130, None], True, id="its-own-unknown"),
    ],
)
def test_an_error_at_another_step_confirms_nothing(
    decisions: Decisions, steps: list[int | None], is_last_confirmed: bool
) -> None:
    *_, last = decisions(POLICY, *[failed("user_code", step, 100) for step in steps])
    assert (last.rule, last.action == "fail") == ("confirm-once", is_last_confirmed)


# -- whatever happens -------------------------------------------------------------------------------

STEPS = st.integers(0, 400)
EXITS = st.builds(
    lambda name, reached, step, every: failed(name, reached, step, reached_every=every),
    st.sampled_from(["numeric", "data", "network"]),
    st.none() | STEPS,
    st.none() | STEPS,
    st.none() | st.integers(1, 10),
)


@given(lines=st.lists(EXITS, min_size=1, max_size=40), length=st.integers(1, 300))
def test_windows_stay_in_order_apart_and_within_what_may_be_skipped(
    lines: list[dict[str, Any]], length: int
) -> None:
    policy = replace(POLICY, skip_steps=length, max_skips=3, max_skips_per_phase=4, max_num_restarts=6)
    history: History = ()
    for number, line in enumerate(lines):
        fields = {name: value for name, value in line.items() if name != "class"}
        asked = Entry(incident=Incident(t=number, failure_class=line["class"], **fields))
        decision = decide(policy, (*history, asked))
        history = (*history, replace(asked, decision=decision))
        if decision.action == "fail":
            break
        earlier = history[-2].decision.skip_steps if len(history) > 1 and history[-2].decision else ()
        assert all(any(a <= first and last <= b for a, b in decision.skip_steps) for first, last in earlier)
        assert list(decision.skip_steps) == list(merged(decision.skip_steps))
    skips = [entry for entry in history if entry.decision and entry.decision.rule == "skip-steps"]
    assert len(skips) <= 4
    opened = [decision.skip_steps for entry in skips if (decision := entry.decision) is not None]
    assert sum(last - first + 1 for first, last in (opened[-1] if opened else ())) <= 4 * 4 * length


def test_an_endless_failure_ends(decisions: Decisions) -> None:
    """Without progress the budget ends it, also while steps are skipped."""
    told = rules_of(decisions(replace(SKIPPING, max_num_restarts=5), *SAVED, *[nan(233)] * 9)[:9])
    assert told[-1].endswith(": fail")


@pytest.mark.parametrize(
    ("windows", "one"),
    [
        pytest.param([], (), id="none"),
        pytest.param([(5, 9), (1, 2)], ((1, 2), (5, 9)), id="put-in-order"),
        pytest.param([(1, 4), (5, 9)], ((1, 9),), id="that-touch"),
        pytest.param([(1, 3), (5, 9)], ((1, 3), (5, 9)), id="with-one-step-between"),
        pytest.param([(1, 9), (3, 4)], ((1, 9),), id="one-within-another"),
    ],
)
def test_windows_that_touch_become_one(windows: list[tuple[int, int]], one: Any) -> None:
    assert merged(windows) == one


# -- hand-overs -------------------------------------------------------------------------------------


def over(*systems: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "handed_over", **({"systems": list(systems)} if systems else {}), **fields}


@pytest.mark.parametrize(
    ("lines", "placement"),
    [
        pytest.param([over()], ("s0", "s1"), id="the-same-pool"),
        pytest.param([over("s1", "n0")], ("n0", "s1"), id="who-can-keep-its-system-keeps-it"),
        pytest.param([over("n0", "n1", "n2")], ("n0", "n1"), id="all-others"),
        pytest.param([over("n0")], ("n0",), id="fewer-shrink-the-gang"),
        pytest.param([over("n0"), over("n1", "n2")], ("n1", "n2"), id="more-let-it-grow-again"),
        pytest.param(
            [{"kind": "system_lost", "system": "s0"}, over("s0", "n1", "n2")],
            ("n1", "n2"),
            id="isolated-ones-stay-so",
        ),
    ],
)
def test_where_workers_are_after_a_hand_over(
    decisions: Decisions, lines: list[dict[str, Any]], placement: tuple[str, ...]
) -> None:
    *_, last = decisions(POLICY, *lines)
    assert (last.rule, last.action, last.placement) == ("handed-over", "rebuild", placement)
    assert last.recreate == tuple(range(len(placement)))


@pytest.mark.parametrize(
    ("policy", "systems"),
    [
        pytest.param(replace(POLICY, elastic=False), ("n0",), id="a-gang-that-may-not-shrink"),
        pytest.param(replace(POLICY, min_num_systems=2), ("n0",), id="below-the-smallest-gang"),
    ],
)
def test_an_allocation_that_is_too_small(
    decisions: Decisions, policy: Policy, systems: tuple[str, ...]
) -> None:
    (only,) = decisions(policy, over(*systems))
    assert (only.rule, only.action) == ("min-systems", "fail")


def test_the_next_pool_is_that_of_later_decisions(decisions: Decisions) -> None:
    lost = {"kind": "system_lost", "worker": 0}
    told = decisions(POLICY, over("n0", "n1", "n2"), lost)
    assert (told[-1].isolate, told[-1].placement) == (("n0",), ("n2", "n1"))


def test_hand_overs_have_a_limit_without_progress(decisions: Decisions) -> None:
    policy = replace(POLICY, max_hand_overs=2)
    told = decisions(policy, over(), over(), over(step=10), over(), over(), over())
    assert [(each.action, each.counters.hand_overs) for each in told] == [
        ("rebuild", 1),
        ("rebuild", 2),
        ("rebuild", 1),
        ("rebuild", 2),
        ("fail", 3),
        ("fail", 4),
    ]
    assert {each.counters.failures_without_progress for each in told} == {0}
