"""Who stands on which system after a decision, and who is created anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_ft.decide import initial_placement
from prefect_ft.model import Policy

POLICY = Policy(
    systems=("s0", "s1", "s2", "s3"), workers=3, max_num_restarts=99, stop_on_repeat=0, suspect_limit=99
)
FULL = replace(POLICY, systems=("s0", "s1", "s2"))
REPLACING = replace(POLICY, max_worker_replacements=9)
HOUR_S = 3600


def failed(failure_class, **fields):
    return {"kind": "exit", "class": failure_class, **fields}


def lost(*systems, **fields):
    return {"kind": "system_lost", "systems": list(systems), **fields}


CRASH = failed("crash")
PREEMPTED = {"kind": "preempted", "worker": 1}


@pytest.mark.parametrize(
    ("policy", "lines", "placement", "recreate"),
    [
        pytest.param(POLICY, [CRASH], ("s0", "s1", "s2"), (), id="in-place-moves-nobody"),
        pytest.param(
            POLICY,
            [CRASH, CRASH],
            ("s0", "s1", "s2"),
            (0, 1, 2),
            id="rebuild-creates-all-anew-where-they-are",
        ),
        pytest.param(
            POLICY, [PREEMPTED], ("s0", "s1", "s2"), (0, 1, 2), id="a-preempted-worker-keeps-its-system"
        ),
        pytest.param(
            POLICY, [lost("s1")], ("s0", "s3", "s2"), (0, 1, 2), id="the-spare-takes-the-displaced-worker"
        ),
        pytest.param(
            REPLACING, [lost("s1")], ("s0", "s3", "s2"), (1,), id="replacing-creates-only-the-displaced-anew"
        ),
        pytest.param(
            REPLACING, [lost("s0", "s1")], ("s3", "s2"), (0, 1), id="too-few-spares-to-replace-shrinks"
        ),
        pytest.param(FULL, [lost("s0")], ("s1", "s2"), (0, 1), id="numbers-are-compacted"),
        pytest.param(FULL, [lost("s0"), CRASH], ("s1", "s2"), (), id="a-shrunk-gang-restarts-in-place"),
        pytest.param(FULL, [lost("s0"), lost("s2")], ("s1",), (0,), id="shrinks-twice"),
        pytest.param(
            replace(POLICY, systems=("s0", "s1", "s2", "s3", "s4"), max_worker_replacements=1),
            [lost("s0", "s2")],
            ("s3", "s1", "s4"),
            (0, 2),
            id="two-workers-of-one-incident-are-one-replacement",
        ),
        pytest.param(
            REPLACING, [lost("s1"), lost("s3")], ("s0", "s2"), (0, 1), id="no-spare-left-to-replace-with"
        ),
        pytest.param(
            replace(REPLACING, max_worker_replacements=1, systems=("s0", "s1", "s2", "s3", "s4")),
            [lost("s1"), lost("s2")],
            ("s0", "s3", "s4"),
            (0, 1, 2),
            id="past-the-limit-of-replacements",
        ),
        pytest.param(
            replace(POLICY, systems=("s0", "s1", "s2", "s3", "s4")),
            [lost("s2", "s0")],
            ("s3", "s1", "s4"),
            (0, 1, 2),
            id="the-lowest-number-takes-the-first-spare",
        ),
        pytest.param(
            REPLACING,
            [lost("s1"), {"kind": "replacement_failed", "system": "s3"}],
            ("s0", "s3", "s2"),
            (0, 1, 2),
            id="after-a-replacement-that-failed-all-are-created-anew",
        ),
        pytest.param(
            replace(FULL, max_worker_replacements=9, isolation_ttl_s=HOUR_S),
            [lost("s0"), lost("s1")],
            ("s0", "s2"),
            (0,),
            id="a-shrunk-gang-replaces-with-what-came-back",
        ),
        pytest.param(POLICY, [lost("s3")], ("s0", "s1", "s2"), (), id="a-lost-spare-moves-nobody"),
        pytest.param(POLICY, [lost("s3"), lost("s1")], ("s0", "s2"), (0, 1), id="a-lost-spare-is-no-spare"),
        pytest.param(POLICY, [lost("s1", "s3")], ("s0", "s2"), (0, 1), id="lost-together-with-the-spare"),
        pytest.param(FULL, [failed("compile")], ("s0", "s1", "s2"), (), id="fail-moves-nobody"),
    ],
)
def test_placement(decisions, policy, lines, placement, recreate):
    last = decisions(policy, *lines)[-1]
    assert (last.placement, last.recreate) == (placement, recreate)


@pytest.mark.parametrize(
    ("line", "action"),
    [
        pytest.param(lost("s3"), "continue", id="a-loss"),
        pytest.param(lost("s1", "s3"), "isolate_and_rebuild", id="unless-one-of-them-has-a-worker"),
        pytest.param(
            {"kind": "device_fault", "system": "s3", "device": "0", "code": "A", "severity": "critical"},
            "continue",
            id="a-fault",
        ),
    ],
)
def test_a_system_without_a_worker_ends_no_attempt_but_is_isolated(decisions, line, action):
    (decision,) = decisions(POLICY, line)
    assert decision.action == action
    assert decision.isolate == tuple(line.get("systems") or (line["system"],))


def test_a_healed_fault_of_a_spare_isolates_nothing(decisions):
    fault = {
        "kind": "device_fault",
        "system": "s3",
        "device": "0",
        "code": "A",
        "severity": "minor",
        "healed": True,
    }
    (decision,) = decisions(POLICY, fault)
    assert (decision.rule, decision.action, decision.isolate) == ("fault-healed", "continue", ())


def test_a_system_that_is_isolated_already_is_not_isolated_again(decisions):
    first, second = decisions(POLICY, lost("s1"), lost("s1"))
    assert (first.action, first.isolate) == ("isolate_and_rebuild", ("s1",))
    assert (second.action, second.isolate) == ("continue", ())


# -- isolation that expires ------------------------------------------------------------------------

TTL = replace(FULL, isolation_ttl_s=2 * HOUR_S)


def test_an_isolation_expires_and_the_next_rebuild_grows_back(decisions):
    lines = [lost("s0", t=HOUR_S), CRASH | {"t": 3 * HOUR_S - 1}, CRASH | {"t": 3 * HOUR_S}]
    assert [decision.placement for decision in decisions(TTL, *lines)] == [
        ("s1", "s2"),
        ("s1", "s2"),
        ("s1", "s2", "s0"),
    ]


def test_a_gang_grows_back_as_far_as_systems_allow(decisions):
    lines = [lost("s0", t=0), lost("s2", t=HOUR_S), CRASH | {"t": 2 * HOUR_S}, CRASH | {"t": 2 * HOUR_S + 1}]
    lines.append(CRASH | {"t": 3 * HOUR_S})
    assert [(d.placement, d.recreate) for d in decisions(TTL, *lines)] == [
        (("s1", "s2"), (0, 1)),
        (("s1",), (0,)),
        (("s1",), ()),
        (("s1", "s0"), (0, 1)),
        (("s1", "s0", "s2"), (0, 1, 2)),
    ]


def test_a_restart_in_place_does_not_grow_back(decisions):
    last = decisions(TTL, lost("s0", t=0), CRASH | {"t": 2 * HOUR_S})[-1]
    assert (last.action, last.placement) == ("restart_in_place", ("s1", "s2"))


def test_without_expiry_a_system_stays_isolated(decisions):
    last = decisions(FULL, lost("s0", t=0), CRASH | {"t": 1e9}, CRASH | {"t": 2e9})[-1]
    assert last.placement == ("s1", "s2")


def test_a_system_is_usable_again_with_a_clean_record(decisions):
    fault = {
        "kind": "device_fault",
        "system": "s0",
        "device": "0",
        "code": "A",
        "severity": "minor",
        "healed": True,
    }
    lines = [
        fault | {"t": 0},
        fault | {"t": 1},
        fault | {"t": 2},
        CRASH | {"t": 3},
        CRASH | {"t": 2 * HOUR_S + 2},
    ]
    *_, isolated, before, after = decisions(TTL, *lines)
    assert isolated.isolate == ("s0",)
    assert before.counters.same_device_fault == {"s0/0/A": 3}
    assert after.counters.same_device_fault == {}


def test_suspicion_against_a_system_ends_when_it_is_usable_again(decisions):
    blaming = failed("data", system="s0")
    lines = [lost("s0", t=0), blaming | {"t": 1}, blaming | {"t": 2 * HOUR_S}]
    assert [d.counters.suspects for d in decisions(TTL, *lines)] == [{}, {"s0": 1}, {"s0": 1}]


# -- the beginning of a phase ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param(POLICY, ("s0", "s1", "s2"), id="in-the-order-of-the-systems"),
        pytest.param(replace(POLICY, isolated=("s1",)), ("s0", "s2", "s3"), id="without-the-isolated"),
        pytest.param(replace(FULL, isolated=("s1",)), ("s0", "s2"), id="smaller-if-it-may-be"),
        pytest.param(replace(FULL, isolated=("s1",), min_num_systems=3), None, id="not-below-the-minimum"),
        pytest.param(replace(FULL, isolated=("s1",), elastic=False), None, id="not-smaller-if-not-elastic"),
        pytest.param(replace(FULL, isolated=("s0", "s1", "s2")), None, id="not-without-a-system"),
    ],
)
def test_initial_placement(policy, expected):
    assert initial_placement(policy) == expected


def test_a_system_isolated_in_an_earlier_phase_is_no_spare(decisions):
    last = decisions(replace(POLICY, isolated=("s3",)), lost("s1"))[-1]
    assert last.placement == ("s0", "s2")


def test_a_system_isolated_in_an_earlier_phase_is_usable_after_the_expiry_in_this_one(decisions):
    policy = replace(TTL, isolated=("s0",))
    lines = [CRASH | {"t": 0}, CRASH | {"t": 2 * HOUR_S - 1}, CRASH | {"t": 2 * HOUR_S}]
    assert [d.placement for d in decisions(policy, *lines)] == [
        ("s1", "s2"),
        ("s1", "s2"),
        ("s1", "s2", "s0"),
    ]
