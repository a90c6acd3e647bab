"""How an incident is read: its class from its output, and what a catalogue's entry adds to it."""

from __future__ import annotations

import pytest

from prefect_ft.decide import with_verdict
from prefect_ft.decide.classify import with_own
from prefect_ft.decide.incidents import classified
from prefect_ft.model import Evidence, Incident, Policy, Verdict
from prefect_ft.signatures import Signature

POLICY = Policy(systems=("s0", "s1", "s2"), workers=2, max_num_restarts=9)
EVIDENCE = Evidence(rule="some-rule", text="some line", file="rank1", line=7)


def verdict(failure_class, recoverable, blame="none"):
    return Verdict(
        failure_class=failure_class, recoverable=recoverable, blame=blame, signature="sig", evidence=EVIDENCE
    )


def test_a_verdict_fills_in_what_the_line_leaves_open():
    incident = Incident(t=1, kind="exit", exit_code=1)
    assert with_verdict(incident, verdict("network", True, "peer")) == Incident(
        t=1,
        kind="exit",
        exit_code=1,
        failure_class="network",
        signature="sig",
        blame="peer",
        evidence=EVIDENCE,
    )


def test_what_the_line_says_stands():
    said = Incident(
        t=1,
        kind="exit",
        signature="own",
        recoverable=True,
        blame="node",
        evidence=Evidence(rule="r", text=""),
    )
    read = with_verdict(said, verdict("network", False, "peer"))
    assert (read.signature, read.recoverable, read.blame, read.evidence) == (
        "own",
        True,
        "node",
        said.evidence,
    )


@pytest.mark.parametrize(
    ("failure_class", "recoverable", "expected"),
    [
        pytest.param("network", True, None, id="what-its-class-says-anyway"),
        pytest.param("config", False, None, id="what-config-says-anyway"),
        pytest.param("user_code", "confirm", None, id="what-user-code-says-anyway"),
        pytest.param("none", None, None, id="what-a-healthy-run-says-anyway"),
        pytest.param("network", "confirm", "confirm", id="an-entry-that-asks-for-confirmation"),
        pytest.param("network", False, False, id="an-entry-that-forbids"),
        pytest.param("user_code", False, False, id="an-entry-that-forbids-what-its-class-confirms"),
    ],
)
def test_only_an_entry_that_narrows_its_class_speaks_for_itself(failure_class, recoverable, expected):
    incident = with_verdict(Incident(t=1, kind="exit"), verdict(failure_class, recoverable))
    assert incident.recoverable == expected


TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "    assert loss > 0",
    "AssertionError: loss is not positive",
]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param({"log": TRACEBACK, "exit_code": 1}, "non-recoverable", id="from-its-log"),
        pytest.param(
            {"log": TRACEBACK, "exit_code": 1, "class": "network"}, "transient", id="a-class-given-stands"
        ),
        pytest.param(
            {"log": TRACEBACK, "kind": "suspended"}, "suspension-reported", id="only-an-exit-is-classified"
        ),
        pytest.param(
            {"log": TRACEBACK, "exit_code": 1, "class": "none"}, "transient", id="the-class-none-stands-too"
        ),
        pytest.param({"log": [], "exit_code": 0}, "completed", id="no-log-and-exit-code-0"),
        pytest.param(
            {"log": ["epoch 1 done"], "exit_code": 0}, "completed", id="a-healthy-log-and-exit-code-0"
        ),
    ],
)
def test_an_exit_is_classified_from_its_log(decisions, line, expected):
    (decision,) = decisions(POLICY, {"kind": "exit", **line})
    assert decision.rule == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param({"signal": 11}, "crash", id="signal"),
        pytest.param({"exit_code": 139}, "crash", id="exit-code"),
        pytest.param({"exit_code": 1}, "unknown", id="an-exit-code-that-says-nothing"),
    ],
)
def test_an_exit_whose_log_says_nothing_is_classified_by_how_it_ended(line, expected):
    incident = classified(Incident(t=1, kind="exit", log=("step 1",), **line))
    assert incident.failure_class == expected


def test_a_catalogue_of_the_users_own_is_asked_where_it_is_given():
    mine = Signature(id="mine", failure_class="storage", pattern="^The shelf is full")
    incident = Incident(t=1, kind="exit", exit_code=1, log=("The shelf is full",))
    assert classified(incident, with_own([mine])).failure_class == "storage"
    assert classified(incident).failure_class == "unknown"


def test_an_exit_that_was_none_is_a_completion_without_a_class():
    incident = Incident(t=1, kind="exit", exit_code=0, failure_class="none")
    assert classified(incident) == Incident(t=1, kind="completed", exit_code=0)


def test_only_an_exit_has_a_class_to_be_found():
    suspended = Incident(t=1, kind="suspended", log=("Killed",))
    assert classified(suspended) == suspended
