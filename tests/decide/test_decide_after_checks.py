"""What a restart has to pass after a rule has chosen it, in the order of the checks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_ft.model import Policy

POLICY = Policy(systems=("s0", "s1", "s2"), workers=2, max_num_restarts=9, stop_on_repeat=0)
FULL = replace(POLICY, systems=("s0", "s1"))
REPLACING = replace(POLICY, max_worker_replacements=1)


def failed(failure_class, **fields):
    return {"kind": "exit", "class": failure_class, **fields}


def lost(*systems):
    return {"kind": "system_lost", "systems": list(systems)}


DATA_ON_1 = failed("data", worker=1)
HEALED_ON_1 = {
    "kind": "device_fault",
    "worker": 1,
    "device": "0",
    "code": "A",
    "severity": "minor",
    "healed": True,
}
SILENT_1 = failed("collective_timeout", reported=[0])


# -- suspect ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "lines", "expected"),
    [
        pytest.param(POLICY, [DATA_ON_1] * 2, ("transient", "rebuild", ()), id="below-the-limit"),
        pytest.param(
            POLICY, [DATA_ON_1] * 3, ("transient", "isolate_and_rebuild", ("s1",)), id="at-the-limit"
        ),
        pytest.param(
            REPLACING, [DATA_ON_1] * 3, ("transient", "replace_workers", ("s1",)), id="replaced-where-on"
        ),
        pytest.param(
            replace(POLICY, suspect_limit=1),
            [DATA_ON_1],
            ("transient", "isolate_and_rebuild", ("s1",)),
            id="at-once-with-a-limit-of-1",
        ),
        pytest.param(
            replace(POLICY, suspect_limit=2),
            [DATA_ON_1],
            ("transient", "restart_in_place", ()),
            id="the-first-is-not-yet-the-second",
        ),
        pytest.param(
            FULL, [DATA_ON_1] * 3, ("transient", "rebuild", ()), id="suspicion-never-shrinks-a-gang"
        ),
        pytest.param(
            POLICY, [SILENT_1] * 3, ("transient", "isolate_and_rebuild", ("s1",)), id="silent-three-times"
        ),
        pytest.param(
            replace(POLICY, systems=("s0", "s1", "s2", "s3", "s4"), workers=3, suspect_limit=1),
            [SILENT_1],
            ("transient", "isolate_and_rebuild", ("s1",)),
            id="one-of-two-that-were-silent",
        ),
        pytest.param(
            replace(POLICY, isolated=("s2",)),
            [DATA_ON_1] * 3,
            ("transient", "rebuild", ()),
            id="an-isolated-one-is-no-spare",
        ),
        pytest.param(
            replace(REPLACING, systems=("s0", "s1", "s2", "s3")),
            [DATA_ON_1] * 3 + [failed("data", worker=0)] * 3,
            ("transient", "isolate_and_rebuild", ("s0",)),
            id="rebuilt-past-the-limit-of-replacements",
        ),
        pytest.param(
            replace(POLICY, max_num_restarts=2),
            [DATA_ON_1] * 3,
            ("max-restarts", "fail", ("s1",)),
            id="before-max-restarts",
        ),
        pytest.param(
            replace(POLICY, suspension_restart=True),
            [DATA_ON_1, DATA_ON_1, {"kind": "suspended", "worker": 1}],
            ("suspended", "restart_in_place", ()),
            id="what-is-not-counted-adds-nothing",
        ),
        pytest.param(
            POLICY,
            [DATA_ON_1, DATA_ON_1, failed("data")],
            ("transient", "rebuild", ()),
            id="only-the-line's-system",
        ),
        pytest.param(
            POLICY,
            [DATA_ON_1, DATA_ON_1, failed("hardware", worker=1)],
            ("node-lost", "isolate_and_rebuild", ("s1",)),
            id="isolated-already",
        ),
        pytest.param(
            POLICY,
            [DATA_ON_1, DATA_ON_1, failed("compile", worker=1)],
            ("non-recoverable", "fail", ()),
            id="only-a-restart-is-checked",
        ),
        pytest.param(
            replace(FULL, systems=("s0", "s1", "s2"), isolated=("s2",), isolation_ttl_s=4 * 3600),
            [*[DATA_ON_1] * 3, HEALED_ON_1],
            ("fault-healed", "isolate_and_rebuild", ("s1",)),
            id="as-soon-as-a-spare-is-there-whatever-is-restarted",
        ),
        pytest.param(
            replace(POLICY, suspect_limit=1),
            [failed("data", system="s2")],
            ("transient", "restart_in_place", ()),
            id="not-if-it-is-not-in-use",
        ),
    ],
)
def test_a_system_that_is_blamed_too_often_is_isolated(decisions, policy, lines, expected):
    last = decisions(policy, *lines)[-1]
    assert (last.rule, last.action, last.isolate) == expected


def test_a_suspect_that_is_isolated_begins_with_a_clean_record(decisions):
    policy = replace(POLICY, systems=("s0", "s1", "s2", "s3"), isolation_ttl_s=2 * 3600)
    lines = [*[DATA_ON_1] * 3, *[failed("data", worker=0)] * 3, *[DATA_ON_1] * 2]
    told = decisions(policy, *lines)
    assert [(d.placement, d.isolate) for d in told[2::3]] == [
        (("s0", "s2"), ("s1",)),
        (("s1", "s2"), ("s0",)),
    ]
    assert (told[-1].isolate, told[-1].counters.suspects) == ((), {"s2": 2})


def test_the_reason_says_that_suspicion_changed_the_action(decisions):
    assert "s1 is suspect after 3 failures" in decisions(POLICY, *[DATA_ON_1] * 3)[-1].reason


def test_one_failure_is_one_failure(decisions):
    told = decisions(replace(POLICY, suspect_limit=1), DATA_ON_1)[-1].reason
    assert "s1 is suspect after 1 failure, s1 isolated" in told


# -- max-restarts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([failed("data")], "transient", id="1-of-1"),
        pytest.param([failed("data")] * 2, "max-restarts", id="2-of-1"),
        pytest.param([failed("data"), failed("data", step=1)], "transient", id="progress-between"),
        pytest.param([failed("data"), HEALED_ON_1], "fault-healed", id="what-does-not-count-passes"),
        pytest.param([failed("data"), {"kind": "preempted"}], "preempted", id="a-preemption-passes"),
        pytest.param([failed("data"), lost("s1")], "max-restarts", id="before-min-systems"),
        pytest.param(
            [failed("data"), failed("compile")], "non-recoverable", id="a-rule-that-fails-keeps-its-name"
        ),
    ],
)
def test_max_restarts(decisions, lines, expected):
    policy = replace(FULL, max_num_restarts=1, min_num_systems=2)
    assert decisions(policy, *lines)[-1].rule == expected


def test_the_blamed_system_is_isolated_although_the_maximum_is_passed(decisions):
    last = decisions(replace(POLICY, max_num_restarts=1), failed("data"), lost("s1"))[-1]
    assert (last.rule, last.action, last.isolate) == ("max-restarts", "fail", ("s1",))
    assert (last.placement, last.recreate, last.resume_step, last.delay_s) == (("s0", "s1"), (), None, 0)


# -- min-systems -----------------------------------------------------------------------------------

THREE = replace(POLICY, workers=3)


@pytest.mark.parametrize(
    ("policy", "lines", "expected"),
    [
        pytest.param(POLICY, [lost("s1")], ("node-lost", ("s0", "s2")), id="a-spare-takes-over"),
        pytest.param(THREE, [lost("s1")], ("node-lost", ("s0", "s2")), id="shrinks"),
        pytest.param(THREE, [lost("s0", "s1")], ("node-lost", ("s2",)), id="shrinks-to-the-minimum"),
        pytest.param(
            THREE, [lost("s0", "s1", "s2")], ("min-systems", ("s0", "s1", "s2")), id="nothing-is-left"
        ),
        pytest.param(
            replace(THREE, min_num_systems=2),
            [lost("s1")],
            ("node-lost", ("s0", "s2")),
            id="2-left-of-at-least-2",
        ),
        pytest.param(
            replace(THREE, min_num_systems=3),
            [lost("s1")],
            ("min-systems", ("s0", "s1", "s2")),
            id="2-left-of-3",
        ),
        pytest.param(
            replace(THREE, min_num_systems=2, isolation_ttl_s=3600),
            [lost("s1"), lost("s0")],
            ("node-lost", ("s1", "s2")),
            id="one-comes-back-as-another-goes",
        ),
        pytest.param(
            replace(THREE, min_num_systems=2, isolation_ttl_s=3601),
            [lost("s1"), lost("s0")],
            ("min-systems", ("s0", "s2")),
            id="one-comes-back-too-late",
        ),
        pytest.param(
            replace(THREE, systems=("s0", "s1", "s2", "s3"), min_num_systems=3),
            [lost("s0", "s1")],
            ("min-systems", ("s0", "s1", "s2")),
            id="a-spare-for-one-of-two",
        ),
        pytest.param(
            replace(THREE, min_num_systems=3, isolation_ttl_s=1),
            [lost("s0", "s1")],
            ("min-systems", ("s0", "s1", "s2")),
            id="fails-now-although-they-would-come-back",
        ),
        pytest.param(
            replace(THREE, elastic=False), [lost("s1")], ("min-systems", ("s0", "s1", "s2")), id="not-elastic"
        ),
        pytest.param(
            replace(POLICY, elastic=False),
            [lost("s1")],
            ("node-lost", ("s0", "s2")),
            id="not-elastic-with-a-spare",
        ),
        pytest.param(
            replace(THREE, min_num_systems=2),
            [lost("s1"), failed("data", step=1), failed("data")],
            ("transient", ("s0", "s2")),
            id="a-shrunk-gang-restarts-as-it-is",
        ),
    ],
)
def test_min_systems(decisions, policy, lines, expected):
    last = decisions(policy, *lines)[-1]
    assert (last.rule, last.placement) == expected


# -- the last system -------------------------------------------------------------------------------

ONE = replace(POLICY, systems=("s0",), workers=1, max_num_restarts=3)
KEPT = replace(ONE, last_system="keep")
PAIR = replace(FULL, elastic=False, last_system="keep")
ECC = failed("hardware", worker=0)
CRITICAL = {"kind": "device_fault", "worker": 0, "device": "0", "code": "A", "severity": "critical"}
NOT_CREATED = {"kind": "rebuild_failed", "worker": 0}


@pytest.mark.parametrize(
    ("policy", "lines", "expected"),
    [
        pytest.param(ONE, [ECC], "min-systems: fail", id="gives-up-by-default"),
        pytest.param(KEPT, [ECC], "node-lost: restart_in_place", id="kept"),
        pytest.param(KEPT, [lost("s0")], "node-lost: restart_in_place", id="kept-when-it-was-lost"),
        pytest.param(KEPT, [CRITICAL], "fault-critical: restart_in_place", id="kept-with-a-faulty-device"),
        pytest.param(KEPT, [NOT_CREATED], "rebuild-failed: rebuild", id="nothing-is-there-to-restart-in-place"),
        pytest.param(KEPT, [ECC] * 4, "max-restarts: fail", id="counted-as-ever"),
        pytest.param(KEPT, [ECC] * 3 + [{**ECC, "step": 9}], "node-lost: restart_in_place", id="progress-resets"),
        pytest.param(
            replace(KEPT, systems=("s0", "s1")), [ECC], "node-lost: isolate_and_rebuild", id="a-spare-is-taken"
        ),
        pytest.param(
            replace(KEPT, systems=("s0", "s1")), [ECC, ECC], "node-lost: restart_in_place", id="then-the-last-is-kept"
        ),
        pytest.param(
            replace(FULL, last_system="keep"), [ECC], "node-lost: isolate_and_rebuild", id="a-gang-that-may-shrink"
        ),
        pytest.param(PAIR, [ECC], "node-lost: restart_in_place", id="a-gang-that-may-not"),
        pytest.param(PAIR, [lost("s0", "s1")], "node-lost: restart_in_place", id="all-at-once"),
        pytest.param(
            replace(KEPT, autorestart=False), [ECC], "not-restartable: fail", id="only-where-there-are-restarts"
        ),
    ],
)  # fmt: skip
def test_the_last_system(verdicts, policy, lines, expected):
    assert verdicts(policy, *lines)[-1] == expected


@pytest.mark.parametrize(
    ("policy", "lines", "why"),
    [
        pytest.param(KEPT, [ECC], ": s0 is the last usable system: kept, restarted in place", id="the-last"),
        pytest.param(
            PAIR, [ECC], ": s0 kept, without it 1 of the 2 systems that it needs would be usable, restarted in place",
            id="one-that-is-needed",
        ),
        pytest.param(
            PAIR, [lost("s0", "s1")], ": s0 and s1 are the last usable systems: kept, restarted in place", id="all"
        ),
    ],
)  # fmt: skip
def test_a_system_that_is_kept_is_named_and_nothing_is_isolated(decisions, policy, lines, why):
    last = decisions(policy, *lines)[-1]
    assert (last.isolate, last.recreate, last.placement) == ((), (), policy.systems)
    assert why in last.reason


def test_who_is_kept_is_not_isolated_either_when_the_restarts_are_used_up(decisions):
    last = decisions(KEPT, *[ECC] * 4)[-1]
    assert (last.rule, last.isolate, last.counters.failures_without_progress) == ("max-restarts", (), 4)


# -- backoff ---------------------------------------------------------------------------------------

PATIENT = replace(POLICY, restart_delay_s=10, max_restart_delay_s=60, suspension_restart=True)


@pytest.mark.parametrize(
    ("policy", "lines", "expected"),
    [
        pytest.param(PATIENT, [failed("data")] * 5, [10, 20, 40, 60, 60], id="doubles-up-to-the-maximum"),
        pytest.param(POLICY, [failed("data")] * 2, [0, 0], id="none-by-default"),
        pytest.param(PATIENT, [failed("data")] * 2 + [failed("data", step=1)], [10, 20, 10], id="progress"),
        pytest.param(
            PATIENT, [failed("data"), HEALED_ON_1, failed("data")], [10, 0, 20], id="not-if-uncounted"
        ),
        pytest.param(PATIENT, [failed("data"), {"kind": "suspended"}], [10, 0], id="not-upon-suspension"),
        pytest.param(PATIENT, [failed("data"), failed("compile")], [10, 0], id="not-before-failing"),
        pytest.param(
            PATIENT,
            [failed("data"), failed("data", step=1), failed("data", step=1)],
            [10, 10, 20],
            id="from-the-first-again-after-progress",
        ),
        pytest.param(
            PATIENT,
            [failed("data"), {"kind": "preempted"}, lost("s1")],
            [10, 0, 20],
            id="whatever-is-counted-waits",
        ),
        pytest.param(
            replace(PATIENT, max_restart_delay_s=39.5),
            [failed("data")] * 3,
            [10, 20, 39.5],
            id="just-above-the-maximum",
        ),
        pytest.param(
            replace(PATIENT, max_restart_delay_s=40),
            [failed("data")] * 4,
            [10, 20, 40, 40],
            id="just-at-the-maximum",
        ),
        pytest.param(
            replace(PATIENT, restart_delay_s=90), [failed("data")], [60], id="a-first-wait-too-long"
        ),
    ],
)
def test_backoff(decisions, policy, lines, expected):
    assert [decision.delay_s for decision in decisions(policy, *lines)] == expected


def test_the_128th_delay_does_not_overflow(decisions):
    policy = replace(POLICY, max_num_restarts=128, restart_delay_s=1e300, max_restart_delay_s=1e301)
    assert decisions(policy, *[failed("network")] * 128)[-1].delay_s == 1e301
