"""What holds for every policy and every history, whatever the rules are."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from prefect_ft.decide import decide, set_aside, skip_eval_at, start_counts
from prefect_ft.model import RESTARTS, Entry, FailureClass, Incident, Policy, Severity, Stage
from prefect_ft.wire import decision_from_json, decision_to_json, incident_from_json, incident_to_json

SYSTEMS = ("s0", "s1", "s2", "s3")
HIGHEST_STEP = 3
NOT_A_FAILURE = ("none", "cancelled", "preempted")

steps = st.none() | st.integers(0, HIGHEST_STEP)
workers = st.none() | st.integers(0, 3)
gaps_s = st.integers(0, 50_000)


@st.composite
def policies(draw):
    count = draw(st.integers(1, 4))
    systems = SYSTEMS[: draw(st.integers(count, 4))]
    return Policy(
        systems=systems,
        workers=count,
        mode=draw(st.sampled_from(("train", "train_and_eval", "eval"))),
        max_num_restarts=draw(st.integers(1, 6)),
        min_num_systems=draw(st.integers(1, count)),
        unconditional=draw(st.booleans()),
        rebuild_only=draw(st.booleans()),
        restart_delay_s=draw(st.sampled_from((0, 1, 1000))),
        max_worker_replacements=draw(st.integers(0, 2)),
        stop_on_repeat=draw(st.integers(0, 2)),
        suspect_limit=draw(st.integers(1, 3)),
        isolation_ttl_s=draw(st.none() | st.integers(0, 100_000)),
        suspension_restart=draw(st.booleans()),
        elastic=draw(st.booleans()),
        target_step=draw(st.none() | st.integers(1, HIGHEST_STEP + 1)),
    )


def exits(*classes):
    return st.builds(
        Incident,
        t=gaps_s,
        kind=st.just("exit"),
        failure_class=st.sampled_from(classes),
        worker=workers,
        step=steps,
        signature=st.none() | st.sampled_from("ab"),
        recoverable=st.sampled_from((None, None, None, True, False, "confirm")),
        blame=st.sampled_from((None, "node", "peer", "none")),
        reported=st.none() | st.sets(st.integers(0, 3)).map(tuple),
        stage=st.none() | st.sampled_from(get_args(Stage)),
        stage_step=steps,
    )


def faults(**fields):
    defaults = {
        "t": gaps_s,
        "kind": st.just("device_fault"),
        "system": st.sampled_from(SYSTEMS),
        "device": st.sampled_from("01"),
        "code": st.sampled_from(("A1", "80C98002")),
        "severity": st.sampled_from(get_args(Severity)),
        "healed": st.sampled_from((None, True, False)),
        "step": steps,
    }
    return st.builds(Incident, **{**defaults, **fields})


def of_kind(*kinds):
    return st.builds(Incident, t=gaps_s, kind=st.sampled_from(kinds), worker=workers, step=steps)


losses = st.builds(
    Incident,
    t=gaps_s,
    kind=st.just("system_lost"),
    systems=st.lists(st.sampled_from(SYSTEMS), min_size=1, max_size=2, unique=True).map(tuple),
    step=steps,
)
recoveries_that_failed = of_kind("replacement_failed", "rebuild_failed", "in_place_failed")
incidents = st.one_of(
    exits(*get_args(FailureClass)),
    exits(*get_args(FailureClass)),
    faults(),
    losses,
    recoveries_that_failed,
    of_kind("suspended", "preempted", "in_process", "completed"),
)


def play(policy, told):
    """Decide about the incidents, whose `t` are gaps, until a decision ends the phase."""
    history, now = (), 0
    for each in told:
        now += each.t
        incident = replace(each, t=now)
        decision = decide(policy, (*history, Entry(incident=incident)))
        history = (*history, Entry(incident=incident, decision=decision))
        if decision.action not in (*RESTARTS, "continue"):
            break
    return history


histories = st.builds(
    lambda policy, told: (policy, play(policy, told)), policies(), st.lists(incidents, max_size=14)
)

failures = st.one_of(
    exits(*(name for name in get_args(FailureClass) if name not in NOT_A_FAILURE)),
    st.builds(Incident, t=gaps_s, kind=st.just("system_lost"), worker=st.just(0), step=steps),
    recoveries_that_failed,
)


@given(policies(), st.data())
def test_an_endless_failing_history_ends_in_fail(policy, data):
    most = (HIGHEST_STEP + 1) * policy.max_num_restarts + 1
    told = data.draw(st.lists(failures, min_size=most, max_size=most))
    assert play(policy, told)[-1].decision.action == "fail"


free_of_charge = st.one_of(
    st.builds(Incident, t=gaps_s, kind=st.just("suspended")),
    st.builds(Incident, t=gaps_s, kind=st.just("preempted")),
    faults(severity=st.just("minor"), healed=st.just(True), code=st.uuids().map(str), step=st.none()),
)
counted = exits("network", "storage", "data", "user_code", "numeric", "assertion")


@given(policies(), st.lists(st.tuples(counted, st.lists(free_of_charge, max_size=4)), max_size=8))
def test_suspensions_healed_faults_and_preemptions_cost_no_restart(policy, told):
    policy = replace(
        policy,
        suspension_restart=True,
        max_suspension_restarts=99,
        stop_on_repeat=0,
        isolation_ttl_s=None,
        suspect_limit=99,
    )
    with_them = play(policy, [incident for failure, free in told for incident in (*free, failure)])
    without = play(policy, [failure for failure, _ in told])

    def outcome(history):
        decided = [entry.decision for entry in history if entry.incident.kind == "exit"]
        return [(d.rule, d.action, d.counters.failures_without_progress, d.resume_step) for d in decided]

    assert outcome(with_them) == outcome(without)


def isolated_after(policy, history):
    """Fold the isolated systems by hand, as of the last entry."""
    since = dict.fromkeys(policy.isolated, 0)
    for entry in history:
        ttl_s = policy.isolation_ttl_s
        since = {name: t for name, t in since.items() if ttl_s is None or entry.incident.t < t + ttl_s}
        since |= dict.fromkeys(entry.decision.isolate, entry.incident.t)
    return set(since)


@given(histories)
def test_no_gang_stands_on_an_isolated_system_or_on_one_twice(played):
    policy, history = played
    for n, entry in enumerate(history, start=1):
        placement = entry.decision.placement
        assert len(set(placement)) == len(placement)
        assert set(placement) <= set(policy.systems)
        if entry.decision.action in RESTARTS:
            assert not set(placement) & isolated_after(policy, history[:n])
            assert policy.min_num_systems <= len(placement) <= policy.workers


@given(histories)
def test_who_is_not_created_anew_stays_where_it_is(played):
    policy, history = played
    before = policy.systems[: policy.workers]
    for entry in history:
        decision = entry.decision
        if decision.action in RESTARTS:
            stay = [worker for worker in range(len(decision.placement)) if worker not in decision.recreate]
            assert [decision.placement[worker] for worker in stay] == [before[worker] for worker in stay]
        else:
            assert (decision.placement, decision.recreate, decision.delay_s) == (before, (), 0)
        before = decision.placement


def through_json(entry):
    incident = json.loads(json.dumps(incident_to_json(entry.incident)))
    decision = json.loads(json.dumps(decision_to_json(entry.decision)))
    return Entry(incident=incident_from_json(incident), decision=decision_from_json(decision))


@given(histories)
def test_a_recorded_history_decides_each_time_as_it_did(played):
    policy, history = played
    read_back = tuple(through_json(entry) for entry in history)
    for n, entry in enumerate(history):
        assert decide(policy, (*read_back[:n], Entry(incident=read_back[n].incident))) == entry.decision


@given(histories, st.integers(0, 13))
def test_an_incident_that_was_never_decided_about_had_no_effect(played, at):
    policy, history = played
    if not history:
        return
    *earlier, last = history
    asked = Entry(incident=last.incident)
    never = Entry(incident=earlier[at % len(earlier)].incident) if earlier else asked
    decision = decide(policy, (*earlier, never, asked))
    assert replace(decision, n=last.decision.n) == last.decision


@given(histories)
def test_what_a_restart_is_told_is_known(played):
    policy, history = played
    if not history:
        return
    decision = history[-1].decision
    named = {entry.incident.step for entry in history}
    assert decision.resume_step is None or decision.resume_step in named - set(set_aside(policy, history))
    assert 0 <= decision.delay_s <= policy.max_restart_delay_s
    counts = start_counts(policy, history)
    assert len(counts) == len(decision.placement)
    assert all(created >= 1 and executed >= 1 for created, executed in counts)
    assert skip_eval_at(policy, history) is None or policy.mode == "train_and_eval"
    assert "\n" not in decision.reason
