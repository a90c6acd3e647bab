"""What each counter counts, and what sets it back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_ft.decide import decide, limits_of
from prefect_ft.decide.budgets import DeviceFaults
from prefect_ft.model import Counters, Entry, Incident, Policy

POLICY = Policy(
    systems=("s0", "s1", "s2", "s3"), workers=2, max_num_restarts=3, stop_on_repeat=0, suspect_limit=9
)
SUSPENSIONS = replace(POLICY, suspension_restart=True)
REPLACING = replace(POLICY, max_worker_replacements=2)

SUSPENDED = {"kind": "suspended"}
HEALED = {
    "kind": "device_fault",
    "system": "s1",
    "device": "0",
    "code": "A1",
    "severity": "minor",
    "healed": True,
}


def failed(failure_class, **fields):
    return {"kind": "exit", "class": failure_class, **fields}


def lost(system, **fields):
    return {"kind": "system_lost", "system": system, **fields}


@pytest.mark.parametrize(
    ("policy", "lines", "expected"),
    [
        pytest.param(POLICY, [failed("network")] * 3, [1, 2, 3], id="every-restart-after-a-failure"),
        pytest.param(POLICY, [failed("network")] * 4, [1, 2, 3, 4], id="also-the-one-that-the-maximum-stops"),
        pytest.param(
            POLICY, [failed("network"), failed("compile")], [1, 1], id="not-where-the-rule-itself-fails"
        ),
        pytest.param(POLICY, [failed("data"), HEALED, HEALED], [1, 1, 1], id="not-a-healed-fault"),
        pytest.param(SUSPENSIONS, [failed("data"), SUSPENDED, SUSPENDED], [1, 1, 1], id="not-a-suspension"),
        pytest.param(POLICY, [failed("data"), {"kind": "preempted"}], [1, 1], id="not-a-preemption"),
        pytest.param(POLICY, [failed("data"), SUSPENDED], [1, 1], id="not-a-report"),
        pytest.param(
            POLICY,
            [failed("data"), {"kind": "rebuild_failed"}, failed("data")],
            [1, 2, 3],
            id="a-failed-recovery-action-too",
        ),
        pytest.param(
            POLICY,
            [{"kind": "rebuild_failed"}, {"kind": "in_place_failed", "attempt": 1, "step": 7}],
            [1, 1],
            id="an-agent-lost-in-the-first-attempt-ends-it",
        ),
        pytest.param(POLICY, [lost("s2"), lost("s3")], [0, 0], id="not-the-loss-of-a-spare"),
        pytest.param(
            POLICY,
            [failed("data"), failed("data"), failed("data", step=1), failed("data", step=1)],
            [1, 2, 1, 2],
            id="progress-resets-before-this-incident-counts",
        ),
        pytest.param(POLICY, [failed("data"), failed("data", step=0)], [1, 2], id="step-0-is-no-progress"),
        pytest.param(
            POLICY, [failed("data", step=5), failed("data", step=4)], [1, 2], id="a-lower-step-is-no-progress"
        ),
        pytest.param(
            POLICY,
            [failed("data", step=5), failed("data"), failed("data", step=5)],
            [1, 2, 3],
            id="unknown-is-not-0",
        ),
        pytest.param(
            POLICY,
            [failed("data"), failed("data"), {"kind": "in_process", "step": 7}, failed("data")],
            [1, 2, 2, 1],
            id="progress-is-judged-once-over-all-that-the-attempt-saw",
        ),
        pytest.param(
            POLICY,
            [failed("data"), failed("data"), HEALED | {"severity": "warning", "step": 7}, failed("data")],
            [1, 2, 2, 1],
            id="a-warning-judges-nothing",
        ),
        pytest.param(
            POLICY,
            [failed("data"), {"kind": "rebuild_failed", "step": 7}, failed("data", step=7)],
            [1, 2, 3],
            id="what-is-verified-between-attempts-is-nobody's-progress",
        ),
        pytest.param(
            POLICY,
            [failed("data"), {"kind": "in_place_failed", "step": 7}],
            [1, 1],
            id="an-agent-lost-after-a-new-checkpoint-ends-an-attempt-with-progress",
        ),
        pytest.param(
            POLICY,
            [failed("checkpoint", step=9), failed("data", step=8)],
            [1, 2],
            id="the-baseline-never-falls",
        ),
        pytest.param(
            replace(POLICY, mode="eval"),
            [failed("data", step=1), failed("data", step=2)],
            [1, 2],
            id="eval-just-counts",
        ),
        pytest.param(
            POLICY,
            [failed("data"), failed("data", step=2, seen_step=9), failed("data", step=9)],
            [1, 1, 2],
            id="a-checkpoint-that-was-seen-whole-was-progress",
        ),
        pytest.param(
            POLICY, [failed("data", step=9, baseline_step=9)], [1], id="what-was-there-before-is-no-progress"
        ),
    ],
)
def test_failures_without_progress(decisions, policy, lines, expected):
    assert [decision.counters.failures_without_progress for decision in decisions(policy, *lines)] == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([SUSPENDED] * 4, [1, 2, 3, 3], id="restarts-and-not-the-failure-past-the-limit"),
        pytest.param([SUSPENDED, SUSPENDED | {"step": 1}], [1, 1], id="progress"),
        pytest.param([SUSPENDED, HEALED, SUSPENDED], [1, 0, 1], id="another-end-of-an-attempt"),
        pytest.param([SUSPENDED, {"kind": "in_process"}, SUSPENDED], [1, 1, 2], id="a-report-ends-nothing"),
        pytest.param([SUSPENDED, {"kind": "in_place_failed"}], [1, 1], id="a-failed-recovery-ends-nothing"),
        pytest.param(
            [{"kind": "in_place_failed"}, SUSPENDED], [0, 1], id="the-first-agent-lost-is-in-mid-attempt"
        ),
    ],
)
def test_consecutive_suspensions(decisions, lines, expected):
    assert [d.counters.consecutive_suspensions for d in decisions(SUSPENSIONS, *lines)] == expected


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [pytest.param(1, 1, id="during-the-restart"), pytest.param(2, 0, id="in-mid-attempt")],
)
def test_an_attempts_number_tells_whether_a_lost_agent_ended_it(decisions, attempt, expected):
    lines = [SUSPENDED | {"attempt": 1}, {"kind": "in_place_failed", "attempt": attempt}]
    assert decisions(SUSPENSIONS, *lines)[-1].counters.consecutive_suspensions == expected


def test_what_was_recorded_as_a_report_has_ended_no_attempt_whatever_the_policy_says_now(told):
    crash = failed("crash", signature="c", step=1)
    history = told(POLICY, crash, SUSPENDED, crash)
    again = decide(SUSPENSIONS, (*history[:-1], Entry(incident=history[-1].incident)))
    assert again.counters.same_failure == 2


def test_replacements_count_when_ordered_and_progress_does_not_reset_them(decisions):
    lines = [lost("s1", step=1), {"kind": "replacement_failed"}, lost("s2", step=2)]
    assert [d.counters.worker_replacements for d in decisions(REPLACING, *lines)] == [1, 1, 2]


def test_past_their_limit_replacements_are_no_longer_ordered(decisions):
    lines = [lost("s1", step=1), lost("s2", step=2), lost("s3", step=3)]
    told = decisions(REPLACING, *lines)
    assert [d.action for d in told] == ["replace_workers", "replace_workers", "isolate_and_rebuild"]
    assert [d.counters.worker_replacements for d in told] == [1, 2, 2]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([failed("data")] * 4, [1, 2, 3, 3], id="restarts-and-not-the-failure-past-the-limit"),
        pytest.param([failed("data"), failed("data", step=1)], [1, 1], id="progress"),
        pytest.param([failed("data"), lost("s1"), failed("data")], [1, 1, 2], id="another-failure-between"),
        pytest.param([failed("data"), HEALED, failed("data")], [1, 1, 2], id="a-healed-fault-between"),
        pytest.param([failed("data"), failed("preempted")], [1, 1], id="not-a-preemption"),
    ],
)
def test_consecutive_unconditional(decisions, lines, expected):
    policy = replace(POLICY, unconditional=True, max_num_restarts=9)
    assert [d.counters.consecutive_unconditional for d in decisions(policy, *lines)] == expected


def test_a_preemption_past_its_limit_is_not_counted(decisions):
    lines = [{"kind": "preempted"}, {"kind": "preempted", "step": 1}]
    told = decisions(replace(POLICY, max_preemptions=1), *lines)
    assert [(d.action, d.counters.preemptions) for d in told] == [("rebuild", 1), ("fail", 1)]


def test_limits_have_the_names_of_their_counters():
    policy = replace(REPLACING, max_suspension_restarts=4, max_preemptions=5)
    limits = limits_of(policy)
    assert limits == {
        "failures_without_progress": 3,
        "consecutive_suspensions": 4,
        "worker_replacements": 2,
        "preemptions": 5,
        "hand_overs": 5,
    }
    assert limits.keys() <= set(Counters._fields)


def test_a_replacement_that_an_after_check_stops_is_not_counted(decisions):
    last = decisions(replace(REPLACING, max_num_restarts=1), failed("data"), lost("s1"))[-1]
    assert (last.rule, last.isolate) == ("max-restarts", ("s1",))
    assert last.counters == Counters(failures_without_progress=2)


def test_progress_resets_neither_preemptions_nor_what_counts_for_a_day(decisions):
    lines = [{"kind": "preempted"}, HEALED, {"kind": "preempted", "step": 5}]
    assert decisions(POLICY, *lines)[-1].counters == Counters(preemptions=2, same_device_fault={"s1/0/A1": 1})


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([HEALED, HEALED], {"s1/0/A1": 2}, id="the-same-code"),
        pytest.param([HEALED, HEALED | {"code": "B2"}], {"s1/0/B2": 1}, id="another-code-on-that-device"),
        pytest.param([HEALED, HEALED | {"device": "1"}], {"s1/0/A1": 1, "s1/1/A1": 1}, id="another-device"),
        pytest.param([HEALED, HEALED | {"severity": "warning"}], {"s1/0/A1": 1}, id="a-warning"),
        pytest.param([HEALED | {"t": 9}, {"kind": "preempted", "t": 86409}], {"s1/0/A1": 1}, id="a-day-ago"),
        pytest.param([HEALED | {"t": 9}, {"kind": "preempted", "t": 86410}], {}, id="more-than-a-day-ago"),
        pytest.param(
            [HEALED | {"t": 9}, HEALED | {"t": 10}, HEALED | {"t": 86410}],
            {"s1/0/A1": 2},
            id="one-of-them-more-than-a-day-ago",
        ),
        pytest.param([HEALED, HEALED | {"code": "B2"}, HEALED], {"s1/0/A1": 1}, id="the-first-code-again"),
        pytest.param(
            [HEALED | {"system": None, "systems": ["s1", "s2"]}, HEALED],
            {"s1/0/A1": 2, "s2/0/A1": 1},
            id="each-of-several-systems",
        ),
        pytest.param([HEALED | {"severity": "critical"}], {"s1/0/A1": 1}, id="a-critical-one"),
        pytest.param([HEALED | {"system": "s3"}], {"s3/0/A1": 1}, id="a-spare's-faults-count-too"),
        pytest.param([HEALED | {"system": None, "worker": 1}], {"s1/0/A1": 1}, id="the-system-of-the-worker"),
    ],
)
def test_same_device_fault(decisions, lines, expected):
    assert decisions(POLICY, *lines)[-1].counters.same_device_fault == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, [1, 2], id="counted"),
        pytest.param({"severity": "warning"}, [0, 0], id="a-warning"),
        pytest.param({"device": None}, [0, 0], id="of-no-device"),
        pytest.param({"code": None}, [0, 0], id="of-no-code"),
    ],
)
def test_how_often_a_fault_was_reported(fields, expected):
    faults = DeviceFaults()
    fault = Incident(t=0, kind="device_fault", **{"device": "0", "code": "A1", "severity": "minor", **fields})
    assert [faults.report(fault, ["s1"]) for _ in range(2)] == expected
    assert faults.report(fault, []) == 0


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([failed("data", signature="x", step=1)] * 2, [1, 2], id="in-a-row"),
        pytest.param(
            [failed("data", signature="x", step=1), failed("data", step=1)], [1, 0], id="no-signature"
        ),
        pytest.param(
            [failed("data", signature="x", step=1), failed("data", signature="x")], [1, 0], id="no-step"
        ),
        pytest.param([failed("data", signature="x", step=1), SUSPENDED], [1, 1], id="a-report"),
        pytest.param([failed("data", signature="x", step=1), HEALED], [1, 0], id="another-end-of-an-attempt"),
        pytest.param(
            [failed("data", signature="x", step=1), {"kind": "rebuild_failed"}],
            [1, 1],
            id="a-failed-recovery-action",
        ),
        pytest.param(
            [failed("data", signature="x", step=1, seen_step=n) for n in (1, 2)],
            [1, 1],
            id="progress-starts-anew",
        ),
    ],
)
def test_same_failure(decisions, lines, expected):
    assert [decision.counters.same_failure for decision in decisions(POLICY, *lines)] == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([failed("data", worker=1)] * 2, {"s1": 2}, id="the-worker's-system"),
        pytest.param([failed("data", worker=1, system="s0")], {"s0": 1}, id="a-system-wins-over-a-worker"),
        pytest.param([failed("data", worker=1, blame="peer")], {}, id="a-peer-is-to-blame"),
        pytest.param([failed("data", worker=1, blame="none")], {}, id="nobody-is-to-blame"),
        pytest.param([failed("data", worker=1, blame="node")], {"s1": 1}, id="the-node-is-to-blame"),
        pytest.param([failed("data", worker=2)], {}, id="a-worker-that-is-not-there"),
        pytest.param([failed("data", system="elsewhere")], {}, id="a-system-outside-the-pool"),
        pytest.param(
            [failed("data", systems=["s0", "elsewhere"])], {"s0": 1}, id="some-systems-outside-the-pool"
        ),
        pytest.param(
            [failed("data", system="s0", systems=["s1", "s0"])], {"s0": 1, "s1": 1}, id="several-systems"
        ),
        pytest.param([failed("compile", worker=1)], {}, id="a-failure-that-is-not-counted"),
        pytest.param([HEALED], {}, id="a-healed-fault-is-not-counted"),
        pytest.param(
            [failed("data", worker=1), failed("data", step=1)], {"s1": 1}, id="progress-does-not-reset"
        ),
        pytest.param([failed("data", worker=1), lost("s1")], {}, id="isolation-resets"),
        pytest.param(
            [failed("collective_timeout", reported=[0])], {"s1": 1}, id="the-silent-worker's-system"
        ),
        pytest.param([failed("collective_timeout", reported=[0, 1])], {}, id="reported-by-all"),
        pytest.param([failed("collective_timeout", reported=[])], {}, id="reported-by-none"),
        pytest.param(
            [failed("collective_timeout", reported=[0], worker=1)], {"s1": 1}, id="silent-and-blamed-is-one"
        ),
        pytest.param([failed("collective_timeout", reported=[0], worker=0)], {"s0": 1, "s1": 1}, id="both"),
        pytest.param([failed("data", reported=[0])], {}, id="only-of-a-collective-timeout"),
    ],
)
def test_suspects(decisions, lines, expected):
    assert decisions(POLICY, *lines)[-1].counters.suspects == expected
