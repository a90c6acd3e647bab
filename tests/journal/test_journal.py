"""The journal on disk: whole lines count, torn ones never, and what was once written reads back."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_ft.clock import PhaseClock
from prefect_ft.decide import decide
from prefect_ft.errors import JournalError, LeaseLostError
from prefect_ft.journal import Journal, Line, MemoryJournal, history_of, read_lines
from prefect_ft.judge import judge
from prefect_ft.model import Entry, Evidence, Incident, Policy

UTC = "2026-01-02T03:04:05.678Z"
POLICY = Policy(systems=("s0", "s1"), workers=2, max_num_restarts=3)
CRASH = Incident(
    t=2.5,
    kind="exit",
    attempt=1,
    worker=1,
    step=0,
    verified=(0,),
    signal=11,
    failure_class="crash",
    signature="ab12",
    evidence=Evidence(rule="signal", text="ended by SIGSEGV \udcff"),
)


def fill(journal: MemoryJournal) -> None:
    """Write one line of each type."""
    journal.append("phase", t=0, utc=UTC, run="r1", job="j", phase="train")
    journal.append("attempt", t=1, utc=UTC, attempt=1, placement=("s0", "s1"), resume_step=None)
    journal.append("checkpoint", t=2, utc=UTC, attempt=1, step=0, path="ck/0", written_t=1.75)
    journal.append_incident(CRASH, n=1, utc=UTC, ended_t=2.25, first_step=None, last_step=7)
    journal.append_decision(decide(POLICY, (Entry(incident=CRASH),)), t=2.75, utc=UTC)
    journal.append("end", t=3, utc=UTC, status="failed", reason="no more")


def filled(path: Path) -> bytes:
    journal = Journal(path)
    fill(journal)
    journal.close()
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


# -- what stands in it ------------------------------------------------------------------------------


def test_a_new_journal_is_empty(path: Path) -> None:
    journal = Journal(path)
    assert (journal.lines, journal.last_t, journal.history(), path.read_bytes()) == ([], 0.0, (), b"")


def test_what_was_written_reads_back(path: Path) -> None:
    filled(path)
    in_memory = MemoryJournal()
    fill(in_memory)
    assert read_lines(path) == json.loads(json.dumps(in_memory.lines))
    assert Journal(path).lines == read_lines(path)


def test_the_history_is_the_incidents_with_their_decisions(path: Path) -> None:
    filled(path)
    entry = Entry(incident=CRASH, decision=decide(POLICY, (Entry(incident=CRASH),)))
    assert Journal(path).history() == (entry,)


def test_an_incident_that_was_not_decided_about_has_no_decision(path: Path) -> None:
    journal = Journal(path)
    journal.append_incident(CRASH, n=1, utc=UTC, ended_t=2.0)
    assert journal.history() == (Entry(incident=CRASH),)


def test_an_incident_keeps_when_it_happened_and_when_it_was_noticed(path: Path) -> None:
    filled(path)
    line = next(line for line in read_lines(path) if line["type"] == "incident")
    assert (line["t"], line["ended_t"], line["last_step"]) == (2.5, 2.25, 7)


def test_time_never_falls(path: Path) -> None:
    journal = Journal(path)
    for t in (5, 3.0000004, 5.0000004, 7, 6):
        journal.append("note", t=t, utc=UTC)
    assert [line["t"] for line in journal.lines] == [5, 5, 5, 7, 7]


def test_time_never_falls_when_a_journal_goes_on(path: Path) -> None:
    filled(path)
    journal = Journal(path)
    journal.append("note", t=0, utc=UTC)
    assert journal.last_t == 3


# -- torn and damaged -------------------------------------------------------------------------------


def test_cut_at_any_byte_it_reads_as_its_whole_lines_and_a_writer_goes_on_from_there(path: Path) -> None:
    data = filled(path)
    lines = read_lines(path)
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        whole = lines[: data[:cut].count(b"\n")]
        assert read_lines(path) == whole
        journal = Journal(path)
        assert journal.lines == whole
        journal.append("note", t=9, utc=UTC)
        journal.close()
        assert read_lines(path) == [*whole, {"type": "note", "t": 9, "utc": UTC}]
        assert path.read_bytes().startswith(data[:cut][: data[:cut].rfind(b"\n") + 1])


with tempfile.TemporaryDirectory() as scratch:
    EXAMPLE = filled(Path(scratch) / "journal.jsonl")

damage = st.binary(max_size=40) | st.sampled_from(
    (b"\n", b"\0" * 300, b"[" * 100_000, b'{"type":1}\n', b"9" * 5000)
)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param({"type": "came-up", "what": "first-line", "at_t": 3.0}, id="of-no-attempt"),
        pytest.param(
            {"type": "came-up", "attempt": 1, "what": 7, "at_t": 3.0}, id="of-nothing-that-is-known"
        ),
        pytest.param({"type": "came-up", "attempt": 1, "what": "first-line"}, id="at-no-time"),
    ],
)
def test_a_line_without_what_readers_rely_on_does_not_count(path: Path, line: dict[str, Any]) -> None:
    filled(path)
    lines = read_lines(path)
    with path.open("a") as file:
        file.write(json.dumps({"t": 3.0, "utc": UTC, **line}) + "\n")
    assert read_lines(path) == lines


@given(start=st.integers(0, len(EXAMPLE)), length=st.integers(0, 60), garbage=damage)
def test_garbage_anywhere_never_raises(start: int, length: int, garbage: bytes) -> None:
    """What can still be read is read; a history that cannot be trusted is a JournalError."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "journal.jsonl"
        path.write_bytes(EXAMPLE[:start] + garbage + EXAMPLE[start + length :])
        lines = read_lines(path)
        assert lines[: EXAMPLE[:start].count(b"\n")] == read_lines_of(EXAMPLE)[: EXAMPLE[:start].count(b"\n")]
        journal = Journal(path)
        journal.append("note", t=0, utc=UTC)
        assert journal.lines == [*lines, journal.lines[-1]] == read_lines(path)
        journal.close()
        with suppress(JournalError):
            history_of(lines)


def read_lines_of(data: bytes) -> list[Line]:
    return [json.loads(line) for line in data.splitlines()]


GOOD = f'{{"type": "note", "t": 1, "utc": "{UTC}"}}'


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        pytest.param(GOOD, "", id="empty"),
        pytest.param(GOOD, "nothing", id="not-json"),
        pytest.param(GOOD, "[1]", id="not-an-object"),
        pytest.param('"type"', '"kind"', id="no-type"),
        pytest.param('"note"', '["note"]', id="type-is-no-text"),
        pytest.param('"t": 1, ', "", id="no-time"),
        pytest.param('"t": 1', '"t": NaN', id="time-is-no-number"),
        pytest.param('"t": 1', '"t": 1' + "0" * 400, id="time-without-end"),
        pytest.param('"t": 1', '"t": true', id="time-is-a-truth"),
        pytest.param('"utc"', '"gmt"', id="no-date"),
        pytest.param(UTC, "yesterday", id="date-is-none"),
        pytest.param("Z", "", id="date-of-no-zone"),
        pytest.param('"note"', '"attempt"', id="attempt-without-number"),
        pytest.param('"note"', '"incident"', id="incident-without-number"),
        pytest.param('"note"', '"end"', id="end-without-reason"),
    ],
)
def test_a_line_that_is_not_what_it_should_be_does_not_count(path: Path, good: str, bad: str) -> None:
    path.write_text(f"{GOOD}\n{GOOD.replace(good, bad)}\n{GOOD}\n")
    assert read_lines(path) == [json.loads(GOOD)] * 2


def test_a_line_of_an_unknown_type_or_with_more_fields_counts(path: Path) -> None:
    line = {"type": "end", "t": 1, "utc": UTC, "status": "failed", "reason": "", "colour": "red"}
    path.write_text(json.dumps(line) + "\n" + json.dumps({**line, "type": "news"}) + "\n")
    assert [line["type"] for line in read_lines(path)] == ["end", "news"]


def test_a_history_passes_over_fields_that_came_later(path: Path) -> None:
    path.write_bytes(EXAMPLE.replace(b'"n":1,', b'"n":1,"colour":"red",'))
    assert EXAMPLE.count(b'"n":1,') == 2
    assert Journal(path).history() == history_of(read_lines_of(EXAMPLE))


def test_an_incident_that_cannot_be_understood_is_no_history(path: Path) -> None:
    path.write_bytes(EXAMPLE.replace(b'"kind":"exit"', b'"kind":"exiT"'))
    with pytest.raises(JournalError, match="damaged: kind: 'exiT'"):
        Journal(path).history()


def test_a_closed_journal_writes_nothing_anywhere(path: Path, tmp_path: Path) -> None:
    """Least of all into the file that got its number."""
    journal = Journal(path)
    journal.close()
    journal.close()
    with (tmp_path / "other").open("wb") as other:
        with pytest.raises(JournalError, match="Bad file descriptor"):
            journal.append("note", t=0, utc=UTC)
        assert other.tell() == 0
    assert (journal.lines, (tmp_path / "other").read_bytes()) == ([], b"")


# -- the disk ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["missing/journal.jsonl", "."])
def test_a_place_that_cannot_be_written_is_a_journal_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(JournalError, match="cannot be written"):
        Journal(tmp_path / name)


def test_a_line_for_which_there_is_no_room_leaves_the_journal_whole(small_disk: Path) -> None:
    path = small_disk / "journal.jsonl"
    whole = filled(path)
    journal = Journal(path)
    with pytest.raises(JournalError, match="No space left on device"):
        journal.append("note", t=4, utc=UTC, text="x" * 300_000)
    assert path.read_bytes() == whole
    assert journal.lines == read_lines(path)
    journal.append("note", t=5, utc=UTC, text="short")
    assert journal.lines == read_lines(path)


def test_a_restart_costs_two_lines_and_one_fsync_before_it_is_carried_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(path)
    journal.append("phase", t=0, utc=UTC, run="r1", job="j", phase="train")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(len(read_lines(path))))
    judge(journal, POLICY, CRASH, PhaseClock())
    assert synced == [3]
    assert [line["type"] for line in read_lines(path)] == ["phase", "incident", "decision"]


def test_what_is_another_orchestrators_by_now_is_not_written_to(path: Path) -> None:
    lost: list[LeaseLostError] = []

    def check() -> None:
        if lost:
            raise lost[0]

    with closing(Journal(path, check)) as journal:
        journal.append("comeback", t=1, utc=UTC, epoch=1, by_hand=False)
        lost.append(LeaseLostError("taken over"))
        with pytest.raises(LeaseLostError):
            journal.append("comeback", t=2, utc=UTC, epoch=2, by_hand=False)
    assert [line["epoch"] for line in read_lines(path)] == [1]
