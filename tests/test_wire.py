"""The JSON forms of facts: their names, that nothing gets lost, and that nothing unknown gets in."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_ft.errors import ConfigError
from prefect_ft.journal.forms import (
    COUNTERS,
    DECISION,
    EVIDENCE,
    FieldError,
    counters_to_json,
    decision_to_json,
    evidence_to_json,
    incident_from_json,
    incident_to_json,
)
from prefect_ft.model import (
    Action,
    Advice,
    AtFault,
    Blame,
    Confidence,
    Counters,
    Decision,
    Evidence,
    FailureClass,
    Incident,
    Kind,
    Role,
    Severity,
    Stage,
)

texts = st.text(max_size=8)
counts = st.integers(0, 10**6)
seconds = st.floats(0, 1e12, allow_nan=False) | counts
known = st.none()


def labels(choices):
    return st.sampled_from(get_args(choices))


def lists_of(items):
    return st.lists(items, max_size=3).map(tuple)


evidences = st.builds(
    Evidence, rule=texts, text=texts, role=labels(Role), file=known | texts, line=known | counts, hint=texts
)
advices = st.builds(
    Advice,
    failure_class=known | labels(FailureClass),
    line=known | texts,
    reason=known | texts,
    used=known | st.booleans(),
    instead_of=known | labels(FailureClass),
    problem=known | texts,
)
incidents = st.builds(
    Incident,
    advice=known | advices,
    t=seconds,
    kind=labels(Kind),
    attempt=known | counts,
    worker=known | counts,
    system=known | texts,
    systems=lists_of(texts),
    blame=known | labels(Blame),
    step=known | counts,
    seen_step=known | counts,
    baseline_step=known | counts,
    verified=known | lists_of(counts),
    reached=known | counts,
    reached_every=known | st.integers(1, 99),
    confidence=known | labels(Confidence),
    exit_code=known | st.integers(-255, 255),
    signal=known | counts,
    failure_class=known | labels(FailureClass),
    signature=known | texts,
    recoverable=st.sampled_from((None, True, False, "confirm")),
    log=lists_of(texts),
    device=texts,
    code=texts,
    severity=labels(Severity),
    healed=known | st.booleans(),
    reported=known | lists_of(counts),
    stage=known | labels(Stage),
    stage_step=known | counts,
    evidence=known | evidences,
)
windows = st.tuples(counts, counts).map(sorted).map(tuple)
counters = st.builds(
    Counters,
    failures_without_progress=counts,
    consecutive_suspensions=counts,
    consecutive_unconditional=counts,
    worker_replacements=counts,
    preemptions=counts,
    hand_overs=counts,
    same_failure=counts,
    same_device_fault=st.dictionaries(texts, counts, max_size=3),
    suspects=st.dictionaries(texts, counts, max_size=3),
)
decisions = st.builds(
    Decision,
    n=counts,
    rule=texts,
    action=labels(Action),
    reason=texts,
    placement=lists_of(texts),
    counters=counters,
    isolate=lists_of(texts),
    recreate=lists_of(counts),
    delay_s=seconds,
    resume_step=known | counts,
    skip_steps=lists_of(windows),
    at_fault=st.none()
    | st.builds(
        AtFault,
        what=texts,
        text=texts,
        failure_class=st.none() | st.sampled_from(["numeric", "data"]),
        steps=lists_of(counts),
        systems=lists_of(texts),
        checkpoint=st.none() | counts,
    ),
)


@pytest.mark.parametrize(
    ("facts", "to_json", "from_json"),
    [
        pytest.param(incidents, incident_to_json, incident_from_json, id="incident"),
        pytest.param(decisions, decision_to_json, DECISION.read, id="decision"),
        pytest.param(counters, counters_to_json, COUNTERS.read, id="counters"),
        pytest.param(evidences, evidence_to_json, EVIDENCE.read, id="evidence"),
    ],
)
def test_nothing_gets_lost_on_the_way_and_back(facts, to_json, from_json):
    @given(facts)
    def comes_back(fact):
        assert from_json(json.loads(json.dumps(to_json(fact)))) == fact

    comes_back()


def test_every_field_of_an_incident_has_a_name_on_the_wire():
    full = {
        "t": 1.5,
        "kind": "device_fault",
        "attempt": 2,
        "worker": 0,
        "system": "s0",
        "systems": ["s0", "s1"],
        "blame": "node",
        "step": 100,
        "seen_step": 110,
        "baseline_step": 90,
        "verified": [90, 100],
        "started_from": 50,
        "counted": True,
        "reached": 120,
        "reached_every": 10,
        "sample": "shard-7",
        "exit_code": 1,
        "signal": 9,
        "class": "hardware",
        "signature": "3f6c",
        "recoverable": "confirm",
        "advice": {
            "class": "data",
            "line": "x",
            "reason": "y",
            "used": True,
            "instead_of": "unknown",
            "problem": "z",
        },
        "confidence": "low",
        "log": ["a", "b"],
        "device": "0",
        "code": "A1",
        "severity": "minor",
        "healed": False,
        "reported": [],
        "stage": "validate",
        "stage_step": 100,
        "evidence": {
            "rule": "xid-79",
            "text": "Xid 79",
            "role": "root",
            "file": "rank3",
            "line": 4,
            "hint": "",
        },
    }
    incident = incident_from_json(full)
    assert incident.failure_class == "hardware"
    assert len(full) == len(Incident.__dataclass_fields__)
    assert incident_to_json(incident) == full


def test_a_decision_looks_as_scripts_know_it():
    decision = Decision(
        n=1,
        rule="node-lost",
        action="replace_workers",
        reason="one sentence",
        placement=("s0", "s2"),
        counters=Counters(failures_without_progress=1, same_device_fault={"s1/0/A1": 2}),
        isolate=("s1",),
        recreate=(1,),
        skip_steps=((195, 234),),
    )
    assert decision_to_json(decision) == {
        "n": 1,
        "rule": "node-lost",
        "action": "replace_workers",
        "isolate": ["s1"],
        "recreate": [1],
        "placement": {"0": "s0", "1": "s2"},
        "delay_s": 0,
        "resume_step": None,
        "skip_steps": [[195, 234]],
        "at_fault": None,
        "counters": {
            "failures_without_progress": 1,
            "consecutive_suspensions": 0,
            "consecutive_unconditional": 0,
            "worker_replacements": 0,
            "preemptions": 0,
            "hand_overs": 0,
            "same_failure": 0,
            "same_device_fault": {"s1/0/A1": 2},
            "suspects": {},
        },
        "reason": "one sentence",
    }


def test_what_is_unknown_is_absent_or_null():
    absent = incident_from_json({"t": 0, "kind": "exit"})
    assert incident_from_json({"t": 0, "kind": "exit", "step": None, "systems": None, "log": None}) == absent
    assert incident_to_json(absent) == {"t": 0, "kind": "exit"}


FAULT = {"kind": "device_fault", "device": "0", "code": "A1", "severity": "minor"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        pytest.param({"stpe": 100}, "stpe", id="unknown-field"),
        pytest.param({"failure_class": "crash"}, "failure_class", id="python's-name-for-class"),
        pytest.param({"kind": "explosion"}, "kind", id="unknown-kind"),
        pytest.param({"kind": None}, "kind", id="no-kind"),
        pytest.param({"kind": ["exit"]}, "kind", id="a-list-for-a-label"),
        pytest.param({"t": None}, "t", id="no-time"),
        pytest.param({"t": -1}, "t", id="a-time-before-the-beginning"),
        pytest.param({"t": "3600"}, "t", id="a-text-for-a-time"),
        pytest.param({"t": float("nan")}, "t", id="a-time-that-is-no-number"),
        pytest.param({"t": float("inf")}, "t", id="a-time-without-end"),
        pytest.param({"t": True}, "t", id="a-flag-for-a-time"),
        pytest.param({"step": 1.0}, "step", id="a-fraction-for-a-step"),
        pytest.param({"step": True}, "step", id="a-flag-for-a-step"),
        pytest.param({"step": -1}, "step", id="a-negative-step"),
        pytest.param({"worker": "0"}, "worker", id="a-text-for-a-worker"),
        pytest.param({"exit_code": "1"}, "exit_code", id="a-text-for-an-exit-code"),
        pytest.param({"system": 3}, "system", id="a-number-for-a-system"),
        pytest.param({"systems": "s0"}, "systems", id="a-text-for-a-list"),
        pytest.param({"systems": ["s0", 1]}, "systems", id="a-list-with-something-else"),
        pytest.param({"class": "explosion"}, "class", id="unknown-class"),
        pytest.param({"blame": "me"}, "blame", id="unknown-blame"),
        pytest.param({"stage": "lunch"}, "stage", id="unknown-stage"),
        pytest.param({"recoverable": "no"}, "recoverable", id="a-text-for-recoverable"),
        pytest.param({"recoverable": 1}, "recoverable", id="a-number-for-recoverable"),
        pytest.param({"log": "line"}, "log", id="a-text-for-a-log"),
        pytest.param({"reported": [-1]}, "reported", id="a-worker-below-0"),
        pytest.param({"evidence": "line"}, "evidence", id="a-text-for-an-object"),
        pytest.param({"evidence": {"rule": "r"}}, "evidence.text", id="a-field-missing-inside"),
        pytest.param(FAULT | {"severity": "bad"}, "severity", id="unknown-severity"),
        pytest.param(FAULT | {"healed": "yes"}, "healed", id="a-text-for-a-flag"),
        pytest.param(FAULT | {"healed": 1}, "healed", id="a-number-for-a-flag"),
        pytest.param(FAULT | {"device": None}, "device", id="a-fault-without-device"),
        pytest.param(FAULT | {"code": None}, "code", id="a-fault-without-code"),
        pytest.param(FAULT | {"severity": None}, "severity", id="a-fault-without-severity"),
    ],
)
def test_an_incident_that_is_not_one_names_the_field(fields, field):
    with pytest.raises(ConfigError) as caught:
        incident_from_json({"t": 0, "kind": "exit", **fields})
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_an_error_says_what_it_got_and_what_it_expected():
    with pytest.raises(ConfigError, match=r"^step: got -1, expected a whole number from 0$"):
        incident_from_json({"t": 0, "kind": "exit", "step": -1})


DECIDED = decision_to_json(
    Decision(n=1, rule="transient", action="rebuild", reason="r", placement=("s0",), counters=Counters())
)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        pytest.param({"action": "explode"}, "action", id="unknown-action"),
        pytest.param({"reason": None}, "reason", id="no-reason"),
        pytest.param({"placement": {"1": "s0"}}, "placement", id="a-placement-with-a-gap"),
        pytest.param({"placement": ["s0"]}, "placement", id="a-list-for-a-placement"),
        pytest.param({"placement": {"0": 0}}, "placement", id="a-placement-on-a-number"),
        pytest.param({"counters": {"suspects": {"s0": "1"}}}, "counters.suspects", id="a-text-for-a-count"),
        pytest.param({"delay_s": -1}, "delay_s", id="a-negative-delay"),
    ],
)
def test_a_decision_that_is_not_one_names_the_field(fields, field):
    with pytest.raises(FieldError) as caught:
        DECISION.read({**DECIDED, **fields})
    assert caught.value.field == field


def test_a_decision_of_a_later_version_is_read_without_what_it_added():
    added = {**DECIDED, "surprise": 1, "counters": {**DECIDED["counters"], "luck": 1}}
    assert DECISION.read(added) == DECISION.read(DECIDED)
