"""What attempts prove of numbers and data that go bad, and where the second try goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_ft.decide import decide, set_aside
from prefect_ft.journal.forms import incident_from_json
from prefect_ft.model import AtFault, Decision, Entry, History, Policy

POLICY = Policy(systems=("s0", "s1", "s2", "s3"), workers=2, max_num_restarts=20, suspect_limit=99)
ELSEWHERE = replace(POLICY, numeric_elsewhere=True)

Decisions = Callable[..., list[Decision]]


def failed(name: str, reached: int | None, step: int | None = None, **fields: Any) -> dict[str, Any]:
    told = {"reached": reached, "step": step, "blame": "none", **fields}
    known = {field: value for field, value in told.items() if value is not None}
    return {"kind": "exit", "class": name, "exit_code": 1, **known}


def nan(reached: int | None, step: int | None = 200, worker: int | None = 1, **fields: Any) -> dict[str, Any]:
    return failed("numeric", reached, step, worker=worker, **fields)


def killed(reached: int | None, step: int | None = 200) -> dict[str, Any]:
    return {
        "kind": "exit",
        "class": "network",
        "exit_code": 1,
        **({} if reached is None else {"reached": reached}),
        **({} if step is None else {"step": step}),
    }


DONE = {"kind": "completed", "exit_code": 0}
SAVED = [killed(150, 100), killed(210, 200)]
"""After it there are checkpoints of the steps 100 and 200, and the next attempt starts from 200, on s0 and s1."""


def found(told: list[Decision]) -> list[tuple[str, tuple[int, ...], tuple[str, ...]] | None]:
    return [
        each.at_fault and (each.at_fault.what, each.at_fault.steps, each.at_fault.systems) for each in told
    ]


DATA, SYSTEM, CHECKPOINT, CHANCE = "data_or_code", "system", "checkpoint", "chance"


@pytest.mark.parametrize(
    ("policy", "lines", "last"),
    [
        # the data or the code
        pytest.param(POLICY, [nan(233), nan(233)], (DATA, (233,), ("s1",)), id="numbers-at-their-step"),
        pytest.param(POLICY, [nan(233), nan(234)], None, id="not-at-another-step"),
        pytest.param(POLICY, [nan(233), nan(233, started_from=200)], None, id="not-from-the-same-start"),
        pytest.param(
            POLICY, [failed("data", 233, 200)] * 2, (DATA, (233,), ()), id="data-from-the-same-start"
        ),
        pytest.param(POLICY, [nan(None), nan(None)], None, id="nothing-where-no-step-is-known"),
        pytest.param(
            ELSEWHERE, [nan(233), nan(233), nan(233)], (DATA, (233,), ("s1", "s2")), id="on-two-systems"
        ),
        # a system
        pytest.param(ELSEWHERE, [nan(233), DONE], (SYSTEM, (233,), ("s1",)), id="gone-elsewhere"),
        pytest.param(ELSEWHERE, [nan(233), killed(234)], (SYSTEM, (233,), ("s1",)), id="a-step-further"),
        pytest.param(ELSEWHERE, [nan(233), killed(233)], None, id="not-before-it-is-passed"),
        pytest.param(
            ELSEWHERE, [nan(233), killed(None, 300)], (SYSTEM, (233,), ("s1",)), id="passed-by-a-checkpoint"
        ),
        pytest.param(ELSEWHERE, [nan(233), killed(None)], None, id="nobody-knows-how-far-it-came"),
        pytest.param(ELSEWHERE, [nan(233), nan(240)], None, id="not-while-failures-come"),
        # a checkpoint
        pytest.param(POLICY, [nan(233), DONE], (CHECKPOINT, (233,), ("s1",)), id="gone-from-an-older-one"),
        pytest.param(
            ELSEWHERE, [nan(233), nan(233), DONE], (CHECKPOINT, (233,), ("s1", "s2")), id="not-gone-elsewhere"
        ),
        pytest.param(POLICY, [nan(233, reported=[0, 1]), DONE], (CHECKPOINT, (233,), ()), id="told-by-all"),
        # chance
        pytest.param(
            POLICY,
            [nan(233, started_from=0), DONE],
            (CHANCE, (233,), ("s1",)),
            id="gone-from-the-same-lineage",
        ),
        pytest.param(
            ELSEWHERE,
            [nan(233), nan(240, worker=0), DONE],
            (CHANCE, (233, 240), ("s1", "s0")),
            id="told-by-one-system-and-then-another",
        ),
        pytest.param(
            ELSEWHERE,
            [nan(233), killed(250), nan(240, worker=0), DONE],
            (CHANCE, (240,), ("s0",)),
            id="later-another",
        ),
        pytest.param(
            POLICY, [nan(233), nan(235), DONE], (CHANCE, (233, 235), ("s1",)), id="from-two-checkpoints"
        ),
        pytest.param(
            POLICY, [failed("data", 233, 200), DONE], (CHANCE, (233,), ()), id="data-that-was-bad-once"
        ),
    ],
)
def test_what_attempts_prove(
    decisions: Decisions, policy: Policy, lines: list[dict[str, Any]], last: Any
) -> None:
    told = found(decisions(policy, *SAVED, *lines))
    assert told[-1] == last
    assert told[:2] == [None, None]


def test_a_finding_is_told_once(decisions: Decisions) -> None:
    told = found(decisions(ELSEWHERE, *SAVED, nan(233), killed(240), killed(250), DONE))
    assert told == [None, None, None, (SYSTEM, (233,), ("s1",)), None, None]


def test_all_failures_at_a_step_are_told_again_where_skipping_does_not_help(decisions: Decisions) -> None:
    policy = replace(POLICY, skip_steps=5)
    told = decisions(policy, *SAVED, nan(233), nan(233), nan(233), DONE)
    assert [each.at_fault and each.at_fault.text for each in told[2:]] == [
        None,
        "the data or the code: step 233 failed 2 times, started from step 200 and from step 100, reported by s1",
        "the data or the code: step 233 failed 3 times, started from step 200 and from step 100, reported by s1",
        None,
    ]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        pytest.param(
            [nan(233), DONE],
            "s1 is suspect: it reported the failure at step 233, which has gone since it is not in use",
            id="system",
        ),
        pytest.param(
            [nan(233), nan(233), DONE],
            "the checkpoint of step 200: from it the failure at step 233 came, and not from step 100",
            id="checkpoint",
        ),
        pytest.param(
            [nan(233, started_from=0, reported=[0, 1]), DONE],
            "chance: the failure at step 233 did not come again",
            id="once",
        ),
        pytest.param(
            [nan(233), nan(240, worker=0), DONE],
            "chance: step 233 on s1; step 240 on s0",
            id="here-and-there",
        ),
    ],
)
def test_what_a_finding_says(decisions: Decisions, lines: list[dict[str, Any]], text: str) -> None:
    *_, last = decisions(ELSEWHERE, *SAVED, *lines)
    assert last.at_fault is not None
    assert last.at_fault.text == text


# -- a poisoned checkpoint is set aside -------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "aside"),
    [
        pytest.param(killed(240), (200,), id="it-lies-there-still"),
        pytest.param(killed(240, 205), (), id="saved-anew-as-far-as-can-be-known"),
        pytest.param(
            {**killed(240), "verified": [100, 200], "seen_step": 199}, (200,), id="saved-only-before-it"
        ),
        pytest.param({**killed(240), "verified": [100, 200], "seen_step": 200}, (), id="saved-anew"),
    ],
)
def test_a_poisoned_checkpoint_is_set_aside(
    told: Callable[..., History], last: dict[str, Any], aside: Any
) -> None:
    assert set_aside(POLICY, told(POLICY, *SAVED, nan(233), last)) == aside


# -- the second try ---------------------------------------------------------------------------------


def moves(told: list[Decision]) -> list[Any]:
    return [(each.rule, each.action, each.placement, each.resume_step) for each in told[2:]]


def test_the_second_try_is_on_a_spare_from_the_same_start_and_the_third_further_back(
    decisions: Decisions,
) -> None:
    policy = replace(ELSEWHERE, max_worker_replacements=1, skip_steps=5)
    told = decisions(policy, *SAVED, nan(233), nan(233), nan(233))
    assert moves(told) == [
        ("numeric", "replace_workers", ("s0", "s2"), 200),
        ("numeric", "restart_in_place", ("s0", "s2"), 100),
        ("skip-steps", "restart_in_place", ("s0", "s2"), 100),
    ]
    assert [each.recreate for each in told[2:]] == [(1,), (), ()]
    assert [each.isolate for each in told] == [()] * 5
    assert told[2].counters.worker_replacements == 1


def test_after_progress_it_starts_one_checkpoint_further_back(decisions: Decisions) -> None:
    told = decisions(ELSEWHERE, *SAVED, nan(333, 300), nan(333, 300))
    assert moves(told) == [
        ("numeric", "rebuild", ("s0", "s2"), 200),
        ("numeric", "restart_in_place", ("s0", "s2"), 100),
    ]


@pytest.mark.parametrize(
    ("policy", "first"),
    [
        pytest.param(ELSEWHERE, nan(233), id="told-by-one"),
        pytest.param(ELSEWHERE, nan(233, reported=[1]), id="told-by-one-that-is-known"),
    ],
)
def test_who_moves(decisions: Decisions, policy: Policy, first: dict[str, Any]) -> None:
    assert decisions(policy, *SAVED, first)[-1].placement == ("s0", "s2")


@pytest.mark.parametrize(
    ("policy", "first"),
    [
        pytest.param(POLICY, nan(233), id="not-asked-for"),
        pytest.param(ELSEWHERE, nan(233, reported=[0, 1]), id="told-by-all"),
        pytest.param(ELSEWHERE, nan(233, worker=None), id="nobody-knows-by-whom"),
        pytest.param(ELSEWHERE, nan(233, worker=7), id="by-no-worker-of-the-gang"),
        pytest.param(replace(ELSEWHERE, systems=("s0", "s1")), nan(233), id="no-spare"),
        pytest.param(replace(ELSEWHERE, isolated=("s2", "s3")), nan(233), id="no-spare-that-is-usable"),
        pytest.param(ELSEWHERE, failed("data", 233, 200, worker=1), id="data-is-no-matter-of-systems"),
    ],
)
def test_who_does_not(decisions: Decisions, policy: Policy, first: dict[str, Any]) -> None:
    told = decisions(policy, *SAVED, first)
    assert (told[-1].placement, told[-1].action) == (
        ("s0", "s1"),
        "restart_in_place" if "numeric" in first.values() else "rebuild",
    )


def test_a_worker_moves_once_until_there_is_progress(decisions: Decisions) -> None:
    told = decisions(ELSEWHERE, *SAVED, nan(233), nan(240), nan(333, 300))
    assert [each.placement for each in told[2:]] == [("s0", "s2"), ("s0", "s2"), ("s0", "s3")]


def test_a_system_that_was_left_is_the_last_spare(decisions: Decisions) -> None:
    policy = replace(ELSEWHERE, systems=("s0", "s1", "s2"), workers=1)
    lost = {"kind": "system_lost", "worker": 0}
    told = decisions(policy, nan(33, None, worker=0), lost, lost)
    assert [each.placement for each in told] == [("s1",), ("s2",), ("s0",)]


def test_a_suspect_that_is_isolated_is_not_left_as_well(decisions: Decisions) -> None:
    policy = replace(ELSEWHERE, suspect_limit=1)
    *_, last = decisions(policy, *SAVED, nan(233, blame="node"))
    assert (last.action, last.isolate, last.resume_step) == ("isolate_and_rebuild", ("s1",), 100)


# -- Megatron's rerun state machine -----------------------------------------------------------------

MEGATRON = {"exit_code": 16, "evidence": {"rule": "megatron-resume-elsewhere", "text": "resume"}}


def test_a_result_is_tried_again_on_another_device_from_the_checkpoint_that_was_saved(
    decisions: Decisions,
) -> None:
    told = decisions(POLICY, *SAVED, nan(300, 300, **MEGATRON), nan(300, 300, **MEGATRON))
    assert moves(told) == [
        ("numeric", "rebuild", ("s0", "s2"), 300),
        ("numeric", "restart_in_place", ("s0", "s2"), 200),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({**MEGATRON, "exit_code": 17}, id="rejected"),
        pytest.param({**MEGATRON, "exit_code": 1}, id="another-code"),
        pytest.param({**MEGATRON, "evidence": {"rule": "py-value", "text": "x"}}, id="another-program"),
        pytest.param({**MEGATRON, "class": "data"}, id="another-class"),
    ],
)
def test_other_ends_ask_for_nothing(decisions: Decisions, fields: dict[str, Any]) -> None:
    *_, last = decisions(POLICY, *SAVED, {**nan(300, 300), **fields})
    assert (last.placement, last.resume_step == 300) == (("s0", "s1"), "class" in fields)


def test_without_a_spare_the_last_checkpoint_is_tried_once_all_the_same(decisions: Decisions) -> None:
    policy = replace(POLICY, systems=("s0", "s1"))
    told = decisions(policy, *SAVED, nan(300, 300, **MEGATRON), nan(300, 300, **MEGATRON))
    assert [each[1::2] for each in moves(told)] == [("restart_in_place", 300), ("restart_in_place", 200)]


# -- whatever happens -------------------------------------------------------------------------------

STEPS = st.none() | st.integers(0, 60)
LINES = st.builds(
    lambda name, reached, step, worker, reported, code: failed(
        name, reached, step, worker=worker, reported=reported, reached_every=1, exit_code=code
    ),
    st.sampled_from(["numeric", "numeric", "data", "network"]),
    STEPS,
    STEPS,
    st.none() | st.integers(0, 2),
    st.none() | st.lists(st.integers(0, 1), max_size=2),
    st.sampled_from([1, 16]),
)
POLICIES = st.builds(
    lambda spares, elsewhere, skip, replacements: replace(
        POLICY,
        systems=("s0", "s1", "s2", "s3")[: 2 + spares],
        numeric_elsewhere=elsewhere,
        skip_steps=skip,
        max_worker_replacements=replacements,
        max_num_restarts=6,
    ),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([0, 5]),
    st.integers(0, 2),
)


@given(policy=POLICIES, lines=st.lists(LINES, min_size=1, max_size=30))
def test_a_suspicion_shrinks_no_gang_isolates_nothing_and_an_endless_history_ends(
    policy: Policy, lines: list[dict[str, Any]]
) -> None:
    history: History = ()
    without_progress = 0
    for number, line in enumerate(lines):
        asked = Entry(incident=incident_from_json({**line, "t": number}))
        decision = decide(policy, (*history, asked))
        history = (*history, replace(asked, decision=decision))
        assert decide(policy, (*history[:-1], asked)) == decision
        if decision.action == "fail":
            return
        without_progress = decision.counters.failures_without_progress
        assert without_progress <= 6
        assert (len(decision.placement), decision.isolate) == (2, ())
        assert len({*decision.placement}) == 2
        assert decision.counters.worker_replacements <= policy.max_worker_replacements
        assert decision.at_fault is None or isinstance(decision.at_fault, AtFault)
    repeated = lines[-1]
    for number in range(len(lines), len(lines) + 8):
        asked = Entry(incident=incident_from_json({**repeated, "t": number}))
        decision = decide(policy, (*history, asked))
        history = (*history, replace(asked, decision=decision))
        if decision.action == "fail":
            return
    raise AssertionError("the same failure again and again ends the phase")
