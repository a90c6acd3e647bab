"""The journal on disk: whole lines count, torn ones never, and what was once written reads back."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_ft.clock import PhaseClock
from prefect_ft.decide import decide
from prefect_ft.errors import JournalError, LeaseLostError
from prefect_ft.journal.judge import judge
from prefect_ft.journal.lines import (
    Journal,
    MemoryJournal,
    checked_lines,
    encoded,
    history_of,
    read_lines,
    scan,
    without_damage,
)
from prefect_ft.journal.records import (
    AttemptLine,
    CheckpointLine,
    ComebackLine,
    EndLine,
    IncidentLine,
    Line,
    PhaseLine,
    UnknownLine,
    read_line,
)
from prefect_ft.model import Entry, Evidence, Incident, Policy

UTC = "2026-01-02T03:04:05.678Z"
POLICY = Policy(systems=("s0", "s1"), workers=2, max_num_restarts=3)
NOTE = UnknownLine(type="note", fields={})
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
    journal.append(PhaseLine(run="r1", job="j", phase="train"), t=0, utc=UTC)
    journal.append(AttemptLine(attempt=1, placement=("s0", "s1"), resume_step=None), t=1, utc=UTC)
    journal.append(CheckpointLine(attempt=1, step=0, path="ck/0", written_t=1.75), t=2, utc=UTC)
    journal.append_incident(CRASH, n=1, utc=UTC, ended_t=2.25, first_step=None, last_step=7)
    journal.append_decision(decide(POLICY, (Entry(incident=CRASH),)), t=2.75, utc=UTC)
    journal.append(EndLine(status="failed", reason="no more"), t=3, utc=UTC)


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
    assert read_lines(path) == in_memory.lines
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
    line = next(line for line in read_lines(path) if isinstance(line, IncidentLine))
    assert (line.t, line.ended_t, line.last_step) == (2.5, 2.25, 7)


def test_time_never_falls(path: Path) -> None:
    journal = Journal(path)
    for t in (5, 3.0000004, 5.0000004, 7, 6):
        journal.append(NOTE, t=t, utc=UTC)
    assert [line.t for line in journal.lines] == [5, 5, 5, 7, 7]


def test_time_never_falls_when_a_journal_goes_on(path: Path) -> None:
    filled(path)
    journal = Journal(path)
    journal.append(NOTE, t=0, utc=UTC)
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
        journal.append(NOTE, t=9, utc=UTC)
        journal.close()
        assert read_lines(path) == [*whole, NOTE.but(t=9, utc=UTC)]
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
        if scan(path.read_bytes()).damaged:
            with pytest.raises(JournalError, match="the journal is damaged: "):
                Journal(path)
            path.write_bytes(without_damage(path))
            assert read_lines(path) == lines
        journal = Journal(path)
        journal.append(NOTE, t=0, utc=UTC)
        assert journal.lines == [*lines, journal.lines[-1]] == read_lines(path)
        journal.close()
        with suppress(JournalError):
            history_of(lines)


def read_lines_of(data: bytes) -> list[Line]:
    return [read_line(json.loads(line)) for line in without_sums(data).splitlines()]


def without_sums(data: bytes) -> bytes:
    """The same as an older writer has it."""
    return re.sub(rb',"sum":"[0-9a-f]{8}"}', b"}", data)


def bits_flipped(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Flip one bit of each byte, one byte at a time."""
    for place in range(len(data)):
        yield place, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_no_byte_changes_unnoticed_in_what_a_line_says() -> None:
    """A change of the checksum's own name alone, and of what ends the last line, leaves what it says as it was."""
    lines = read_lines_of(EXAMPLE)
    for place, data in bits_flipped(EXAMPLE):
        found = scan(data)
        told = [line for _, line in found.lines]
        assert found.damaged or told == lines or (place == len(EXAMPLE) - 1 and told == lines[:-1]), place


def test_a_damaged_line_is_refused_by_file_line_and_byte(path: Path) -> None:
    path.write_bytes(EXAMPLE.replace(b'"restart_in_place"', b'"restart_in_plade"'))
    offset = sum(len(line) + 1 for line in EXAMPLE.split(b"\n")[:4])
    with pytest.raises(JournalError) as caught:
        Journal(path)
    assert str(caught.value) == (
        f"{path}:5: byte {offset}: the journal is damaged: its checksum is wrong; "
        f"`prefect-ft repair {path.parent}` shows what is lost and can go on without it"
    )
    assert path.read_bytes() == EXAMPLE.replace(b'"restart_in_place"', b'"restart_in_plade"')


def test_several_damaged_lines_are_counted(path: Path) -> None:
    path.write_bytes(b"nothing\n" * 3 + EXAMPLE)
    with pytest.raises(JournalError, match=r":1: byte 0: .*: it is no JSON object \(and 2 more\); "):
        checked_lines(path)


def test_a_journal_of_an_older_writer_is_gone_on_with(path: Path) -> None:
    path.write_bytes(without_sums(EXAMPLE))
    journal = Journal(path)
    journal.append(NOTE, t=9, utc=UTC)
    assert len(checked_lines(path)) == 7
    assert re.fullmatch(rb'{"type":"note",.*,"sum":"[0-9a-f]{8}"}', path.read_bytes().splitlines()[-1])


def test_a_line_of_a_later_writer_that_is_whole_is_no_damage(path: Path) -> None:
    """Its checksum says that it is as it was written; what it lacks, this version does not understand."""
    path.write_bytes(EXAMPLE + encoded({"type": "attempt", "t": 9, "utc": UTC}))
    assert len(checked_lines(path)) == 6


def test_an_incident_after_a_lost_one_does_not_take_its_number(path: Path) -> None:
    journal = MemoryJournal()
    for _ in range(3):
        judge(journal, POLICY, CRASH, PhaseClock())
    kept = [line for line in journal.lines if line.n != 2]
    after = MemoryJournal(kept)
    decision = judge(after, POLICY, CRASH, PhaseClock())
    assert (decision.n, [line.n for line in after.lines]) == (4, [1, 1, 3, 3, 4, 4])


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
    assert read_lines(path) == [read_line(json.loads(GOOD))] * 2


def test_a_line_of_an_unknown_type_or_with_more_fields_counts(path: Path) -> None:
    line = {"type": "end", "t": 1, "utc": UTC, "status": "failed", "reason": "", "colour": "red"}
    path.write_text(json.dumps(line) + "\n" + json.dumps({**line, "type": "news"}) + "\n")
    assert [line.type for line in read_lines(path)] == ["end", "news"]


def test_a_history_passes_over_fields_that_came_later(path: Path) -> None:
    path.write_bytes(without_sums(EXAMPLE).replace(b'"n":1,', b'"n":1,"colour":"red",'))
    assert EXAMPLE.count(b'"n":1,') == 2
    assert Journal(path).history() == history_of(read_lines_of(EXAMPLE))


def test_an_incident_that_cannot_be_understood_is_no_history(path: Path) -> None:
    path.write_bytes(without_sums(EXAMPLE).replace(b'"kind":"exit"', b'"kind":"exiT"'))
    with pytest.raises(JournalError, match="damaged: kind: got 'exiT', expected one of exit, completed"):
        Journal(path).history()


def test_a_closed_journal_writes_nothing_anywhere(path: Path, tmp_path: Path) -> None:
    """Least of all into the file that got its number."""
    journal = Journal(path)
    journal.close()
    journal.close()
    with (tmp_path / "other").open("wb") as other:
        with pytest.raises(JournalError, match="Bad file descriptor"):
            journal.append(NOTE, t=0, utc=UTC)
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
        journal.append(UnknownLine(type="note", fields={"text": "x" * 300_000}), t=4, utc=UTC)
    assert path.read_bytes() == whole
    assert journal.lines == read_lines(path)
    journal.append(UnknownLine(type="note", fields={"text": "short"}), t=5, utc=UTC)
    assert journal.lines == read_lines(path)


def fill_up(directory: Path) -> None:
    """Take all the room that is left on a file system."""
    with (directory / "filler").open("ab", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(b"x" * 512)


def test_room_is_kept_for_a_restart_and_no_reader_sees_it(small_disk: Path) -> None:
    path = small_disk / "journal.jsonl"
    journal = Journal(path)
    fill_up(small_disk)
    assert path.read_bytes() == b""
    fill(journal)
    assert len(read_lines(path)) == 6
    assert path.read_bytes().count(b"\n") == 6
    assert b"\0" not in path.read_bytes()


def test_who_goes_on_with_a_journal_on_a_full_disk_has_its_room(small_disk: Path) -> None:
    path = small_disk / "journal.jsonl"
    dead = Journal(path)
    fill(dead)
    fill_up(small_disk)
    journal = Journal(path)
    assert len(journal.lines) == 6
    journal.append(NOTE, t=4, utc=UTC)
    assert len(read_lines(path)) == 7


def test_the_room_is_kept_anew_as_it_is_used_up(small_disk: Path) -> None:
    path = small_disk / "journal.jsonl"
    journal = Journal(path)
    for number in range(400):
        journal.append(NOTE, t=number, utc=UTC)
    fill_up(small_disk)
    for number in range(50):
        journal.append(NOTE, t=number, utc=UTC)
    assert len(read_lines(path)) == 450


def test_a_closed_journal_keeps_no_room(path: Path) -> None:
    journal = Journal(path)
    fill(journal)
    kept = path.stat().st_blocks * 512
    journal.close()
    if kept < path.stat().st_size + 8192:
        pytest.skip("this file system keeps no room in advance")  # NFS has no such operation
    assert path.stat().st_blocks * 512 < kept
    assert path.stat().st_blocks * 512 < path.stat().st_size + 8192


def test_a_restart_costs_two_lines_and_one_fsync_before_it_is_carried_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(path)
    journal.append(PhaseLine(run="r1", job="j", phase="train"), t=0, utc=UTC)
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(len(read_lines(path))))
    judge(journal, POLICY, CRASH, PhaseClock())
    assert synced == [3]
    assert [line.type for line in read_lines(path)] == ["phase", "incident", "decision"]


def test_what_is_another_orchestrators_by_now_is_not_written_to(path: Path) -> None:
    lost: list[LeaseLostError] = []

    def check() -> None:
        if lost:
            raise lost[0]

    with closing(Journal(path, check)) as journal:
        journal.append(ComebackLine(epoch=1, by_hand=False), t=1, utc=UTC)
        lost.append(LeaseLostError("taken over"))
        with pytest.raises(LeaseLostError):
            journal.append(ComebackLine(epoch=2, by_hand=False), t=2, utc=UTC)
    assert [line.epoch for line in read_lines(path)] == [1]


# -- threads and processes --------------------------------------------------------------------------


def test_threads_that_decide_at_once_know_of_each_other(path: Path) -> None:
    journal = Journal(path)
    together = threading.Barrier(8)

    def decided(_: int) -> str:
        together.wait()
        return judge(journal, POLICY, CRASH, PhaseClock()).action

    with ThreadPoolExecutor(8) as threads:
        actions = list(threads.map(decided, range(8)))
    journal.close()
    in_turn = MemoryJournal()
    assert sorted(actions) == sorted(judge(in_turn, POLICY, CRASH, PhaseClock()).action for _ in range(8))
    assert [line.n for line in checked_lines(path)] == [n for n in range(1, 9) for _ in range(2)]


@pytest.mark.parametrize(
    "made", [MemoryJournal, lambda: Journal(Path("journal.jsonl"))], ids=["memory", "file"]
)
def test_a_journal_refuses_to_be_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="a journal cannot be pickled: another process would not see"):
            copied(made())


def test_a_fork_writes_nothing_into_the_journal(path: Path) -> None:
    journal = Journal(path)
    pid = os.fork()
    if pid == 0:
        try:
            journal.append(NOTE, t=0, utc=UTC)
        except JournalError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert path.read_bytes() == b""
