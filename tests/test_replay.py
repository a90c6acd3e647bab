"""Incidents are read whole before anything is decided, then decided one by one; journals also compared."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from prefect_ft.clock import PhaseClock
from prefect_ft.decide.classify import with_own
from prefect_ft.errors import ConfigError
from prefect_ft.journal.judge import judge
from prefect_ft.journal.lines import Journal
from prefect_ft.journal.records import AttemptLine, PhaseLine
from prefect_ft.journal.replay import compare, read_recording, replay
from prefect_ft.model import Entry, Incident, Policy

POLICY = Policy(systems=("s0", "s1"), workers=2, max_num_restarts=9)

CRASH = {"t": 10, "kind": "exit", "class": "crash", "step": 100}
FAULT = {"t": 20, "kind": "device_fault", "device": "0", "code": "A1", "severity": "minor"}
LOST = {"t": 20, "kind": "system_lost"}


@pytest.fixture
def written(tmp_path):
    """Write lines, objects as JSON, and return the file's path."""

    def write(*lines):
        path = tmp_path / "incidents.jsonl"
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return path

    return write


def decided(path):
    return list(replay(POLICY, read_recording(path)))


def test_incidents_are_read_in_their_order(written):
    recording = read_recording(written(CRASH, {"t": 10, "kind": "cancelled"}))
    assert recording.history == (
        Entry(incident=Incident(t=10, kind="exit", failure_class="crash", step=100)),
        Entry(incident=Incident(t=10, kind="cancelled")),
    )
    assert (recording.is_journal, recording.phase, recording.isolated) == (False, None, ())


def test_each_decision_builds_on_those_before(written):
    outcome = [
        (d.n, d.rule, d.action) for d in decided(written(CRASH, CRASH, {"t": 30, "kind": "completed"}))
    ]
    assert outcome == [
        (1, "transient", "restart_in_place"),
        (2, "transient", "rebuild"),
        (3, "completed", "complete"),
    ]


@pytest.mark.parametrize(
    "place", [{"system": "s1"}, {"systems": ["s1"]}, {"worker": 1}, {"system": "s1", "worker": 9}], ids=str
)
@pytest.mark.parametrize("line", [FAULT, LOST], ids=["fault", "loss"])
def test_a_place_may_be_named_in_any_way(written, line, place):
    (decision,) = decided(written({**line, **place}))
    assert decision.isolate == ("s1",)


@pytest.mark.parametrize("text", ["", "\n", "\n\n"])
def test_a_file_without_incidents_has_no_decisions(tmp_path, text):
    path = tmp_path / "empty.jsonl"
    path.write_text(text)
    assert decided(path) == []


def test_a_text_may_hold_what_other_programs_take_for_line_ends(written):
    (entry,) = read_recording(written({**CRASH, "signature": "a\u2028b"})).history
    assert entry.incident.signature == "a\u2028b"


@pytest.mark.parametrize(
    ("lines", "line", "field"),
    [
        pytest.param([CRASH, {**CRASH, "t": 9}], 2, "t", id="time-falls"),
        pytest.param([CRASH, {**CRASH, "kind": "explosion"}], 2, "kind", id="unknown-kind"),
        pytest.param([{**CRASH, "stpe": 1}], 1, "stpe", id="unknown-field"),
        pytest.param([CRASH, "{"], 2, None, id="not-json"),
        pytest.param([CRASH, "[]"], 2, None, id="not-an-object"),
        pytest.param([CRASH, '{"t": NaN, "kind": "exit"}'], 2, None, id="not-a-number"),
        pytest.param([CRASH, "", CRASH], 2, None, id="an-empty-line-between"),
        pytest.param(["[" * 100_000], 1, None, id="nested-beyond-reason"),
        pytest.param([CRASH, FAULT], 2, "system", id="a-fault-nowhere"),
        pytest.param([CRASH, LOST], 2, "system", id="a-loss-nowhere"),
        pytest.param([CRASH, {**LOST, "systems": []}], 2, "system", id="a-loss-of-no-system"),
        pytest.param([CRASH, {**FAULT, "system": "s9"}], 2, "system", id="a-fault-of-an-unknown-system"),
        pytest.param(
            [CRASH, {**LOST, "systems": ["s0", "s9"]}], 2, "systems", id="a-loss-of-an-unknown-system"
        ),
        pytest.param([CRASH, {**LOST, "worker": 2}], 2, "worker", id="a-loss-of-an-unknown-worker"),
        pytest.param(
            [{**LOST, "worker": 1}, {**LOST, "worker": 1}],
            2,
            "worker",
            id="a-worker-that-the-gang-no-longer-has",
        ),
        pytest.param([{"t": 1, "kind": "completed"}, CRASH], 2, "kind", id="after-complete"),
        pytest.param([{"t": 1, "kind": "cancelled"}, CRASH], 2, "kind", id="after-cancel"),
        pytest.param([{**CRASH, "class": "compile"}, CRASH], 2, "kind", id="after-fail"),
    ],
)
def test_a_file_that_is_wrong_names_line_and_field(written, lines, line, field):
    path = written(*lines)
    with pytest.raises(ConfigError) as caught:
        decided(path)
    error = caught.value
    assert (error.file, error.line, error.field) == (str(path), line, field)
    assert "\n" not in str(error)


def test_something_may_follow_an_incomplete_success(written):
    policy = Policy(systems=("s0",), workers=1, target_step=400)
    recording = read_recording(written({"t": 1, "kind": "completed", "step": 300}, CRASH))
    assert [decision.rule for decision in replay(policy, recording)] == ["transient", "max-restarts"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "cannot be read: No such file or directory", id="no-file"),
        pytest.param(b"\xff\xfe", "is not UTF-8 text", id="not-text"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path, content, message):
    path = tmp_path / "incidents.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_recording(path)
    assert str(caught.value) == f"{path}: {message}"


# -- journals ---------------------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path):
    """Have incidents judged under a policy, and return the journal's path."""

    def record(policy, *incidents, **head):
        path = tmp_path / "journal.jsonl"
        written = Journal(path)
        names = {"run": "r", "job": "j", "phase": "train", "isolated": policy.isolated}
        written.append(PhaseLine(**{**names, **head}), t=0, utc=UTC)
        written.append(AttemptLine(attempt=1, resume_step=None, placement=("s0", "s1")), t=0, utc=UTC)
        for incident in incidents:
            judge(written, policy, incident, PhaseClock())
        written.close()
        return path

    return record


UTC = "2026-01-02T03:04:05Z"
CRASHED = Incident(t=10, kind="exit", failure_class="crash", step=100, seen_step=200, verified=(50, 100))
LOST_S1 = Incident(t=20, kind="system_lost", system="s1")
COMPLETED = Incident(t=30, kind="completed", attempt=3)


def rules(decisions):
    return [(each.rule, each.action) for each in decisions]


def test_a_journal_gives_all_that_its_supervisor_knew(journal):
    path = journal(replace(POLICY, isolated=("s9",)), CRASHED, COMPLETED)
    recording = read_recording(path)
    assert [entry.incident for entry in recording.history] == [CRASHED, COMPLETED]
    assert rules(entry.decision for entry in recording.history) == [
        ("transient", "restart_in_place"),
        ("completed", "complete"),
    ]
    assert (recording.phase, recording.isolated, recording.numbers) == ("train", ("s9",), (3, 5))


def test_a_journal_from_before_isolated_systems_were_told_says_of_none(journal):
    assert read_recording(journal(POLICY, isolated=None)).isolated == ()


def test_a_torn_last_line_counts_as_little_as_it_did(journal):
    path = journal(POLICY, CRASHED, COMPLETED)
    path.write_bytes(path.read_bytes()[:-9])
    assert [entry.decision is None for entry in read_recording(path).history] == [False, True]
    assert rules(replay(POLICY, read_recording(path))) == [
        ("transient", "restart_in_place"),
        ("completed", "complete"),
    ]
    assert len(list(compare(POLICY, read_recording(path).history))) == 1


def test_a_damaged_journal_is_told_and_nothing_is_decided(journal):
    path = journal(POLICY, CRASHED)
    unsigned = re.sub(r',"sum":"[0-9a-f]{8}"}', "}", path.read_text())
    path.write_text(unsigned.replace('"kind":"exit"', '"kind":"explosion"'))
    with pytest.raises(ConfigError, match=r"journal\.jsonl: the journal is damaged: kind: "):
        read_recording(path)


def test_replay_of_a_journal_leaves_out_what_would_not_have_been(journal):
    path = journal(POLICY, CRASHED, replace(CRASHED, t=11), COMPLETED)
    strict = replace(POLICY, max_num_restarts=1, restart_on=frozenset())
    assert rules(replay(strict, read_recording(path))) == [("not-restartable", "fail")]


def test_a_place_that_the_job_no_longer_has_is_named_with_the_journals_line(journal):
    path = journal(POLICY, CRASHED, LOST_S1)
    with pytest.raises(ConfigError, match=r"journal.jsonl:5: system: unknown system 's1'; known are s0"):
        list(replay(replace(POLICY, systems=("s0",), workers=1), read_recording(path)))


EVERYTHING = (CRASHED, LOST_S1, replace(CRASHED, t=25, step=300, seen_step=300), COMPLETED)


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(POLICY, id="as-it-is"),
        pytest.param(replace(POLICY, restart_delay_s=0.1), id="with-backoff"),
        pytest.param(replace(POLICY, systems=("s0", "s1", "s2"), isolated=("s0",)), id="isolated-before"),
        pytest.param(replace(POLICY, isolation_ttl_s=1.0), id="isolated-for-a-time"),
    ],
)
def test_a_policy_agrees_with_its_own_journal(journal, policy):
    recording = read_recording(journal(policy, *EVERYTHING))
    again = list(compare(replace(policy, isolated=recording.isolated), recording.history))
    assert [each.differs for each in again] == [()] * 4
    assert [each.now for each in again] == [each.recorded for each in again]


def test_each_incident_is_decided_after_what_was_really_done(journal):
    """The policy that fails upon the first crash is asked about the second as if it had not."""
    recording = read_recording(journal(POLICY, CRASHED, LOST_S1, COMPLETED))
    other = replace(POLICY, restart_on=frozenset(), restart_delay_s=5.0)
    again = list(compare(other, recording.history))
    assert rules(each.now for each in again) == [
        ("not-restartable", "fail"),
        ("node-lost", "isolate_and_rebuild"),
        ("completed", "complete"),
    ]
    assert [each.differs for each in again] == [
        ("rule", "action", "resume_step", "counters"),
        ("delay_s",),
        (),
    ]


def test_the_pool_is_the_jobs_and_what_it_does_not_name_has_no_worker(journal):
    recording = read_recording(journal(POLICY, LOST_S1))
    (again,) = compare(replace(POLICY, systems=("a", "b")), recording.history)
    assert (again.now.action, again.now.placement) == ("continue", ("a", "b"))


def test_own_signatures_are_used_for_what_was_not_classified(journal, tmp_path):
    from prefect_ft.config import own_signatures

    signature = {
        "id": "ours",
        "class": "config",
        "pattern": "tile .* is off",
        "example": "tile A is off",
    }
    incident = Incident(t=1, kind="exit", exit_code=1, log=("tile A is off",))
    recording = read_recording(journal(POLICY, incident))
    (again,) = compare(POLICY, recording.history, with_own(own_signatures((signature,))))
    assert (again.recorded.rule, again.now.rule) == ("transient", "non-recoverable")
