"""What Prefect is told of a journal: each record once, under names that follow from the journal alone."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from past_runs import PAST_RUNS, came_through, gave_up, hung, write

from prefect_ft.model import Counters, Decision
from prefect_ft.prefect_edge.reporting.pages import ledger, recovery_page
from prefect_ft.prefect_edge.reporting.records import (
    DecisionRecord,
    events_of,
    line_of,
    records_of,
    state_name,
)
from prefect_ft.prefect_edge.reporting.tail import MARK, ShownTail
from prefect_ft.report.story import PhaseJournal, story_of
from prefect_ft.report.tail import Tail

RUN, DIRECTORY = "20260301-220000-c0ffee", "20260301_220000_restartable"


def names(make: object, after: int = 0) -> list[list[str]]:
    lines = make().lines  # type: ignore[operator]
    return [[note.name for note in events_of(record)] for record in records_of(RUN, DIRECTORY, lines, after)]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        pytest.param(
            came_through,
            [
                ["prefect-ft.restart"],
                ["prefect-ft.isolation", "prefect-ft.restart"],
                [],
                ["prefect-ft.phase-completed"],
            ],
            id="came-through",
        ),
        pytest.param(hung, [["prefect-ft.suspension", "prefect-ft.restart"]], id="hung"),
        pytest.param(
            gave_up,
            [["prefect-ft.restart"], ["prefect-ft.restart"], [], ["prefect-ft.gave-up"]],
            id="gave-up",
        ),
    ],
)
def test_the_events_of_a_run(run: object, expected: list[list[str]]) -> None:
    assert names(run) == expected
    for shown in range(len(expected) + 1):
        assert names(run, after=shown) == expected[shown:]


def test_an_event_has_the_same_id_whoever_tells_it_and_no_other_has_it() -> None:
    def ids() -> list[object]:
        records = records_of(RUN, DIRECTORY, came_through().lines, 0)
        return [note.id for record in records for note in events_of(record)]

    assert ids() == ids()
    assert len(set(ids())) == len(ids()) == 4


def test_an_isolation_is_related_to_its_system() -> None:
    (_, second, *_) = records_of(RUN, DIRECTORY, came_through().lines, 0)
    assert [note.systems for note in events_of(second)] == [("node-c",)] * 2


def test_the_line_of_log_has_rule_class_evidence_and_counters() -> None:
    (first, *_) = records_of(RUN, DIRECTORY, came_through().lines, 0)
    assert isinstance(first, DecisionRecord)
    assert line_of(first) == (
        "phase=pretrain attempt=1 outcome=exit class=crash rule=transient action=restart_in_place delay_s=0 "
        "cause=signal blame=None evidence='Fatal Python error: Segmentation fault' failures_without_progress=1: "
        + first.decision.reason
    )


@pytest.mark.parametrize(
    ("action", "isolate", "name"),
    [
        ("restart_in_place", (), "Restarting in place"),
        ("rebuild", (), "Rebuilding"),
        ("replace_workers", ("s1",), "Isolating s1"),
        ("isolate_and_rebuild", ("s1", "s2"), "Isolating s1, s2"),
        ("complete", (), None),
        ("fail", (), None),
        ("continue", ("s1",), None),
    ],
)
def test_the_name_of_the_state(action: object, isolate: tuple[str, ...], name: str | None) -> None:
    decision = Decision(
        n=1, rule="r", action=action, reason="", placement=(), counters=Counters(), isolate=isolate  # type: ignore[arg-type]
    )  # fmt: skip
    assert state_name(decision) == name


def test_the_ledger_has_a_row_for_each_decision() -> None:
    story = story_of([PhaseJournal(lines=came_through().lines)])
    columns = ("when", "attempt", "class", "action", "system", "steps lost", "time lost", "budgets after")
    assert [tuple(row[name] for name in columns) for row in ledger(story)] == [
        ("2026-03-01T23:13:20.000Z", 1, "crash", "restart_in_place", "node-b", 253, "1.0 s",
         "failures without progress 1 of 3, suspicion of node-b 1"),
        ("2026-03-02T00:31:40.000Z", 2, "hardware", "isolate_and_rebuild", "node-c", 366, "60 s",
         "failures without progress 1 of 3, suspicion of node-b 1"),
        ("2026-03-02T03:32:40.000Z", 3, None, "complete", "", None, None,
         "failures without progress 0 of 3, suspicion of node-b 1"),
    ]  # fmt: skip


@pytest.mark.parametrize("make", PAST_RUNS.values(), ids=PAST_RUNS)
def test_the_page_has_its_picture_in_it(make: object) -> None:
    page = recovery_page(story_of([PhaseJournal(lines=make().lines)]))  # type: ignore[operator]
    (drawn,) = re.findall(r"\]\(data:image/svg\+xml;base64,([\w+/=]+)\)", page)
    assert ET.fromstring(base64.b64decode(drawn)).tag.endswith("svg")


def test_a_tail_reads_what_is_new_and_follows_a_journal_that_was_replaced(tmp_path: Path) -> None:
    directory = write(tmp_path / "phase", came_through())
    path = directory / "journal.jsonl"
    whole = path.read_bytes()
    half = whole.index(b"\n", len(whole) // 2) + 10
    path.write_bytes(whole[:half])
    tail = Tail(directory)
    read = [len(tail.lines)]
    with path.open("ab") as file:
        file.write(whole[half:])
    read.append(len(tail.lines))
    path.replace(tmp_path / "old")
    path.write_bytes(whole)
    read.append(len(tail.lines))
    count = len(came_through().lines)
    assert read == [whole[:half].count(b"\n"), count, count]


@pytest.mark.parametrize("damage", ["", "[]", '{"shown": "x"}', "\x00"])
def test_a_damaged_mark_shows_all_again(tmp_path: Path, damage: str) -> None:
    (tmp_path / MARK).write_text(damage)
    assert ShownTail(tmp_path).shown == 0
