"""What a rank reports of a device reaches its agent whole or not at all, and never costs the training anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefect_ft.worker.appended import LINE_BYTES
from prefect_ft.worker.faults import Reports, report_fault

FAULT = {"device": "3", "code": "E1", "severity": "major", "message": "it burns"}


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reports:
    """A rank's reports, as its agent reads them; the rank is this process."""
    monkeypatch.setenv("PREFECT_FT_HEARTBEAT", str(tmp_path / "1-0.beat"))
    return Reports(str(tmp_path / "1-0.beat"))


def test_each_report_is_read_once_and_again_for_whoever_comes_new(reports: Reports) -> None:
    assert reports.new() == []
    assert report_fault(3, "E1", "major", "it burns")
    assert [report for _, report in reports.new()] == [FAULT]
    assert reports.new() == []
    report_fault("gpu1", "E2")
    second = {"device": "gpu1", "code": "E2", "severity": None, "message": ""}
    assert reports.new() == [(2, second)]
    reports.rewind()
    assert reports.new() == [(1, FAULT), (2, second)]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((0, ""), id="no-code"),
        pytest.param((0, 5), id="a-code-that-is-no-text"),
        pytest.param((0, "E1", "deadly"), id="unknown-severity"),
        pytest.param((0, "E" * LINE_BYTES), id="too-long"),
        pytest.param((type("Odd", (), {"__str__": lambda _: 1 / 0})(), "E1"), id="a-device-that-raises"),
    ],
)
def test_what_is_no_report_is_left_out_without_a_word(reports: Reports, arguments: tuple) -> None:
    assert report_fault(*arguments) is False
    assert reports.new() == []


def test_without_an_agent_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_FT_HEARTBEAT", raising=False)
    monkeypatch.chdir(tmp_path)
    assert report_fault(0, "E1") is False
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_nothing_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_FT_HEARTBEAT", "/nowhere/at/all")
    assert report_fault(0, "E1") is False


def test_whatever_else_is_written_there_is_passed_over(reports: Reports) -> None:
    lines = [
        b"nonsense",
        b"[]",
        b'{"device": 1, "code": "E1"}',
        b'{"code": "E1", "severity": "x"}',
        b"{" * 5000,
    ]
    with open(reports.path, "wb") as file:
        file.write(b"\n".join(lines) + b"\n")
    report_fault(3, "E1", "major", "it burns")
    assert [report for _, report in reports.new()] == [FAULT]


def test_half_a_line_is_waited_for_but_not_a_line_without_end(reports: Reports) -> None:
    report_fault(3, "E1", "major", "it burns")
    whole = Path(reports.path).read_bytes()
    with open(reports.path, "wb") as file:
        file.write(whole[:10])
        file.flush()
        assert reports.new() == []
        file.write(whole[10:])
        file.flush()
        assert [report for _, report in reports.new()] == [FAULT]
        file.write(b"x" * (LINE_BYTES + 1))
        file.flush()
        assert reports.new() == []
        file.write(b"\n" + whole)
    assert [report for _, report in reports.new()] == [FAULT]


def test_children_of_a_rank_may_report_at_the_same_time(reports: Reports) -> None:
    children = []
    for number in range(4):
        if not (pid := os.fork()):
            for count in range(50):
                report_fault(number, f"E{count}", message="x" * 500)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    told = []
    while new := reports.new():
        told += new
    assert sorted((each["device"], each["code"]) for _, each in told) == sorted(
        (str(number), f"E{count}") for number in range(4) for count in range(50)
    )
