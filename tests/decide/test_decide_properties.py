"""What holds for every policy and every history, whatever the rules are.

A few examples of each in the ordinary run; `pytest -m long` takes ten thousand.
"""

from __future__ import annotations

import copy
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_ft.clock import PhaseClock
from prefect_ft.decide import InTurn, decide, initial_placement, set_aside, skip_eval_at, start_counts
from prefect_ft.journal.judge import judge
from prefect_ft.journal.lines import Journal, history_of, read_lines
from prefect_ft.model import RESTARTS, Entry, FailureClass, Incident, Policy, Severity, Stage

SYSTEMS = ("s0", "s1", "s2", "s3")
HIGHEST_STEP = 3
NOT_A_FAILURE = ("none", "cancelled", "preempted")


def long(test):
    """Let a property hold for ten thousand examples, which takes minutes."""
    thorough = settings(max_examples=10_000, deadline=None)(test)
    return pytest.mark.long(pytest.mark.timeout(3600)(thorough))


steps = st.none() | st.integers(0, HIGHEST_STEP)
workers = st.none() | st.integers(0, 3)
gaps_s = st.integers(0, 50_000)


@st.composite
def policies(draw):
    count = draw(st.integers(1, 4))
    systems = SYSTEMS[: draw(st.integers(count, 4))]
    policy = Policy(
        systems=systems,
        workers=count,
        mode=draw(st.sampled_from(("train", "train_and_eval", "eval"))),
        isolated=tuple(draw(st.sets(st.sampled_from(systems), max_size=1))),
        max_num_restarts=draw(st.integers(1, 6)),
        min_num_systems=draw(st.integers(1, count)),
        unconditional=draw(st.booleans()),
        rebuild_only=draw(st.booleans()),
        environment_only=draw(st.booleans()),
        restart_delay_s=draw(st.sampled_from((0, 1, 1000))),
        max_worker_replacements=draw(st.integers(0, 2)),
        stop_on_repeat=draw(st.integers(0, 2)),
        suspect_limit=draw(st.integers(1, 3)),
        isolation_ttl_s=draw(st.none() | st.integers(0, 100_000)),
        max_suspension_restarts=draw(st.integers(0, 3)),
        max_preemptions=draw(st.none() | st.integers(0, 3)),
        suspension_restart=draw(st.booleans()),
        elastic=draw(st.booleans()),
        target_step=draw(st.none() | st.integers(1, HIGHEST_STEP + 1)),
        last_system=draw(st.sampled_from(("fail", "keep"))),
    )
    return policy if initial_placement(policy) else replace(policy, isolated=())


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


def in_time(told):
    """Put incidents, whose `t` are gaps, one after the other."""
    now = 0
    for each in told:
        now += each.t
        yield replace(each, t=now)


def goes_on(decision):
    return decision.action in RESTARTS or decision.action == "continue"


def play(policy, told):
    """Decide about incidents until a decision ends the phase."""
    history = ()
    for incident in in_time(told):
        decision = decide(policy, (*history, Entry(incident=incident)))
        history = (*history, Entry(incident=incident, decision=decision))
        if not goes_on(decision):
            break
    return history


def play_in_a_journal(policy, told, path):
    """Do the same as a run does it; return the decisions, and what the journal's file says afterwards."""
    journal, clock = Journal(path), PhaseClock()
    decisions = []
    for incident in in_time(told):
        decisions.append(judge(journal, policy, incident, clock))
        if not goes_on(decisions[-1]):
            break
    journal.close()
    return decisions, history_of(read_lines(path))


def isolated_after(policy, history):
    """Fold the isolated systems by hand, as of the last entry."""
    since = dict.fromkeys(policy.isolated, 0)
    for entry in history:
        ttl_s = policy.isolation_ttl_s
        since = {name: t for name, t in since.items() if ttl_s is None or entry.incident.t < t + ttl_s}
        since |= dict.fromkeys(entry.decision.isolate, entry.incident.t)
    return set(since)


# -- of any history -----------------------------------------------------------------------------------


def no_gang_stands_on_an_isolated_system_or_on_one_twice(policy, history):
    for n, entry in enumerate(history, start=1):
        placement = entry.decision.placement
        assert len(set(placement)) == len(placement)
        assert set(placement) <= set(policy.systems)
        if entry.decision.action in RESTARTS:
            assert not set(placement) & isolated_after(policy, history[:n])
            assert policy.min_num_systems <= len(placement) <= policy.workers


def who_is_not_created_anew_stays_where_it_is(policy, history):
    before = initial_placement(policy)
    for entry in history:
        decision = entry.decision
        if decision.action in RESTARTS:
            stay = [worker for worker in range(len(decision.placement)) if worker not in decision.recreate]
            assert [decision.placement[worker] for worker in stay] == [before[worker] for worker in stay]
        else:
            assert (decision.placement, decision.recreate, decision.delay_s) == (before, (), 0)
        before = decision.placement


def what_costs_no_restart_counts_as_no_failure(policy, history):
    before = 0
    for entry in history:
        count = entry.decision.counters.failures_without_progress
        if entry.decision.rule in ("suspended", "fault-healed", "preempted"):
            assert count in (0, before)
        assert count <= policy.max_num_restarts or entry.decision.rule == "max-restarts"
        before = count


def what_is_kept_never_fails_for_want_of_systems(policy, history):
    if policy.last_system == "keep":
        assert "min-systems" not in [entry.decision.rule for entry in history]
        systems = {*policy.systems}
        for n, entry in enumerate(history, start=1):
            left = systems - isolated_after(policy, history[:n])
            if entry.decision.action != "fail" and entry.decision.isolate:
                assert left >= {*entry.decision.placement}


def the_same_history_gives_the_same_decision(policy, history):
    again = copy.deepcopy(history)
    for n, entry in enumerate(history):
        assert decide(policy, (*again[:n], Entry(incident=again[n].incident))) == entry.decision
    assert again == history


def an_incident_that_was_never_decided_about_had_no_effect(policy, history):
    for at in range(len(history)):
        *earlier, last = history[: at + 1]
        asked = Entry(incident=last.incident)
        never = Entry(incident=earlier[at // 2].incident) if earlier else asked
        decision = decide(policy, (*earlier, never, asked))
        assert replace(decision, n=last.decision.n) == last.decision


def in_turn_each_is_decided_as_by_itself(policy, history):
    deciding = InTurn(policy)
    assert [deciding.decide(entry.incident) for entry in history] == [entry.decision for entry in history]


def what_a_restart_is_told_is_known(policy, history):
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


PROPERTIES = (
    no_gang_stands_on_an_isolated_system_or_on_one_twice,
    who_is_not_created_anew_stays_where_it_is,
    what_costs_no_restart_counts_as_no_failure,
    what_is_kept_never_fails_for_want_of_systems,
    the_same_history_gives_the_same_decision,
    an_incident_that_was_never_decided_about_had_no_effect,
    in_turn_each_is_decided_as_by_itself,
    what_a_restart_is_told_is_known,
)

histories = st.builds(
    lambda policy, told: (policy, play(policy, told)), policies(), st.lists(incidents, max_size=14)
)


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
@given(played=histories)
def test_of_any_history(holds, played):
    holds(*played)


@long
@given(played=histories)
def test_of_ten_thousand_histories(played):
    for holds in PROPERTIES:
        holds(*played)


# -- of a history that only fails -----------------------------------------------------------------------

failures = st.one_of(
    exits(*(name for name in get_args(FailureClass) if name not in NOT_A_FAILURE)),
    st.builds(Incident, t=gaps_s, kind=st.just("system_lost"), worker=st.just(0), step=steps),
    recoveries_that_failed,
)


@st.composite
def endless_failures(draw):
    policy = draw(policies())
    most = (HIGHEST_STEP + 1) * policy.max_num_restarts + 1
    return policy, draw(st.lists(failures, min_size=most, max_size=most))


def ends_in_fail(policy, told):
    assert play(policy, told)[-1].decision.action == "fail"


@given(endless_failures())
def test_an_endless_failing_history_ends_in_fail(endless):
    ends_in_fail(*endless)


@long
@given(endless_failures())
def test_ten_thousand_endless_failing_histories_end_in_fail(endless):
    ends_in_fail(*endless)


# -- of what costs nothing ------------------------------------------------------------------------------

free_of_charge = st.one_of(
    st.builds(Incident, t=gaps_s, kind=st.just("suspended")),
    st.builds(Incident, t=gaps_s, kind=st.just("preempted")),
    faults(severity=st.just("minor"), healed=st.just(True), code=st.uuids().map(str), step=st.none()),
)
counted = exits("network", "storage", "data", "user_code", "numeric", "assertion")
parted_failures = st.lists(st.tuples(counted, st.lists(free_of_charge, max_size=4)), max_size=8)


def change_nothing_else(policy, told):
    policy = replace(
        policy,
        suspension_restart=True,
        max_suspension_restarts=99,
        max_preemptions=None,
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


@given(policies(), parted_failures)
def test_suspensions_healed_faults_and_preemptions_cost_no_restart(policy, told):
    change_nothing_else(policy, told)


@long
@given(policies(), parted_failures)
def test_suspensions_healed_faults_and_preemptions_cost_none_ten_thousand_times(policy, told):
    change_nothing_else(policy, told)


# -- of a journal ---------------------------------------------------------------------------------------


def recorded_decisions_are_made_again(policy, told):
    with tempfile.TemporaryDirectory() as directory:
        decisions, recorded = play_in_a_journal(policy, told, Path(directory) / "journal.jsonl")
    assert [entry.decision for entry in recorded] == decisions
    the_same_history_gives_the_same_decision(policy, recorded)


@given(policies(), st.lists(incidents, max_size=6))
def test_replaying_a_journal_gives_the_decisions_that_it_recorded(policy, told):
    recorded_decisions_are_made_again(policy, told)


@long
@given(policies(), st.lists(incidents, max_size=14))
def test_replaying_ten_thousand_journals_gives_the_decisions_that_they_recorded(policy, told):
    recorded_decisions_are_made_again(policy, told)
