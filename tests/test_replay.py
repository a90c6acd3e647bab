"""A file of incidents is read whole before anything is decided, and then decided line by line."""

from __future__ import annotations

import json

import pytest

from prefect_ft.errors import ConfigError
from prefect_ft.model import Incident, Policy
from prefect_ft.replay import read_incidents, replay

POLICY = Policy(systems=("s0", "s1"), workers=2, max_num_restarts=9)

CRASH = {"t": 10, "kind": "exit", "class": "crash", "step": 100}
FAULT = {"t": 20, "kind": "device_fault", "device": "0", "code": "A1", "severity": "minor"}
LOST = {"t": 20, "kind": "system_lost"}


@pytest.fixture
def written(tmp_path):
    """Write lines, objects as JSON, and give the file's path."""

    def write(*lines):
        path = tmp_path / "incidents.jsonl"
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return path

    return write


def decided(path):
    return list(replay(POLICY, read_incidents(path), file=str(path)))


def test_incidents_are_read_in_their_order(written):
    assert read_incidents(written(CRASH, {"t": 10, "kind": "cancelled"})) == [
        Incident(t=10, kind="exit", failure_class="crash", step=100),
        Incident(t=10, kind="cancelled"),
    ]


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
    (incident,) = read_incidents(written({**CRASH, "signature": "a\u2028b"}))
    assert incident.signature == "a\u2028b"


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
    incidents = read_incidents(written({"t": 1, "kind": "completed", "step": 300}, CRASH))
    assert [decision.rule for decision in replay(policy, incidents)] == ["transient", "max-restarts"]


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
        read_incidents(path)
    assert str(caught.value) == f"{path}: {message}"
