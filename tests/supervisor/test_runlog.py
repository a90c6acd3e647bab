"""run.log: every line says whose it is, no byte is changed or told twice, a full disk costs lines alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from heard import heard

from prefect_ft import pieces
from prefect_ft.observe import Notice, observed_by
from prefect_ft.supervisor.events import Excerpt
from prefect_ft.supervisor.room import Room
from prefect_ft.supervisor.runlog import RunLog

Open = Callable[[], RunLog]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.log"


@pytest.fixture
def opened(path: Path, tmp_path: Path) -> Iterator[Open]:
    """Open the log, again and again as one orchestrator after the other does."""
    logs: list[RunLog] = []

    def opened() -> RunLog:
        logs.append(RunLog(path, tmp_path / "places"))
        return logs[-1]

    yield opened
    for log in logs:
        log.close()


def test_every_line_has_attempt_worker_and_rank_before_it(opened: Open, path: Path) -> None:
    log = opened()
    log.write(1, 0, 0, "one\ntwo\n", 0)
    log.write(2, 1, 13, "\n", 0)
    log.write(2, 1, 13, "no end of line", 1)
    log.write(2, 1, 13, "half a bar\r100%\n", 15)
    assert path.read_bytes() == (
        b"[a1 w0 r0] one\n[a1 w0 r0] two\n[a2 w1 r13] \n[a2 w1 r13] no end of line\n[a2 w1 r13] half a bar\r100%\n"
    )
    assert log.lost_lines == 0


def test_bytes_that_are_no_text_stay_what_they_are(opened: Open, path: Path) -> None:
    opened().write(1, 0, 0, b"\xff\x00\xe2\x82 \xc3\xa9\n".decode("utf-8", "surrogateescape"), 0)
    assert path.read_bytes() == b"[a1 w0 r0] \xff\x00\xe2\x82 \xc3\xa9\n"


def test_what_an_earlier_life_has_written_does_not_come_twice(opened: Open, path: Path) -> None:
    opened().write(3, 0, 1, "one\ntwö\n", 0)
    log = opened()
    log.write(3, 0, 1, "one\ntwö\nthree\n", 0)
    log.write(3, 0, 1, "one\n", 0)
    log.write(3, 0, 0, "another's\n", 0)
    log.write(4, 0, 1, "one\n", 0)
    assert path.read_text().splitlines() == [
        "[a3 w0 r1] one", "[a3 w0 r1] twö", "[a3 w0 r1] three", "[a3 w0 r0] another's", "[a4 w0 r1] one",
    ]  # fmt: skip


def test_what_was_dropped_in_between_is_a_gap_and_no_error(opened: Open, path: Path) -> None:
    opened().write(1, 0, 0, "one\n", 0)
    opened().write(1, 0, 0, "nine\n", 1000)
    assert path.read_text().splitlines() == ["[a1 w0 r0] one", "[a1 w0 r0] nine"]


def test_a_damaged_record_of_places_costs_nothing_but_repetition(
    opened: Open, path: Path, tmp_path: Path
) -> None:
    opened().write(1, 0, 0, "one\n", 0)
    (tmp_path / "places").write_bytes(b"torn")
    opened().write(1, 0, 0, "one\n", 0)
    assert path.read_text().splitlines() == ["[a1 w0 r0] one"] * 2


def test_a_full_disk_loses_whole_lines_and_counts_them(small_disk: Path) -> None:
    path = small_disk / "run.log"
    log = RunLog(path, small_disk / "places")
    log.write(1, 0, 0, "first\n", 0)
    log.write(1, 0, 0, "x" * 300_000 + "\ny\n", 6)
    assert log.lost_lines == 2
    log.write(1, 0, 0, "last\n", 300_009)
    log.close()
    assert path.read_text().splitlines() == [
        "[a1 w0 r0] first",
        "[a1 w0 r0] last",
        "[a1 w0 r0] [prefect-ft] 2 lines before the last were lost: there was no room",
    ]


def test_below_the_floor_nothing_is_written_and_it_is_said_once(small_disk: Path, tmp_path: Path) -> None:
    notices: list[str] = []
    path, filler = small_disk / "run.log", small_disk / "filler"
    room = Room(small_disk, now=count().__next__)
    log = RunLog(path, tmp_path / "places", room=room)
    filler.write_bytes(b"x" * (250 << 10))
    with observed_by(lambda fact: notices.append(fact.text) if isinstance(fact, Notice) else None):
        for number in range(3):
            log.write(1, 0, 0, "a\nb\n", 4 * number)
        assert (path.read_bytes(), log.lost_lines) == (b"", 6)
        filler.unlink()
        log.write(1, 0, 0, "c\n", 12)
        log.write(1, 0, 0, "d\n", 14)
    log.close()
    assert path.read_text().splitlines() == [
        "[a1 w0 r0] c",
        "[a1 w0 r0] [prefect-ft] 6 lines before the last were lost: there was no room",
        "[a1 w0 r0] d",
    ]
    assert len(notices) == 2
    assert "output is not written: 4 KiB are free, less than 12 KiB" in notices[0]
    assert "there is room again: output is written, 6 lines are lost" in notices[1]


def numbered(path: Path) -> list[str]:
    """Return what all pieces hold, in their order."""
    with pieces.opened(path) as files:
        return [line.decode() for _, file in files for line in file]


def test_a_log_that_is_full_begins_anew_and_the_oldest_piece_goes(path: Path, tmp_path: Path) -> None:
    limit_bytes = 8 * 256
    log = RunLog(path, tmp_path / "places", limit_bytes)
    lines = [f"line {number:03}\n" for number in range(300)]
    for number, line in enumerate(lines):
        log.write(1, 0, 0, line, 9 * number)
    log.close()
    found = numbered(path)
    assert found == [f"[a1 w0 r0] {line}" for line in lines[-len(found) :]]
    total = sum(each.stat().st_size for each in tmp_path.glob("run.log*"))
    assert limit_bytes - 2 * 256 < total <= limit_bytes + 20


def test_who_goes_on_with_a_log_goes_on_with_its_pieces(path: Path, tmp_path: Path) -> None:
    lines = [f"line {number:03}\n" for number in range(60)]
    for number, line in enumerate(lines):
        log = RunLog(path, tmp_path / "places", 8 * 100)
        log.write(1, 0, 0, line, 9 * number)
        log.close()
    found = numbered(path)
    assert found == [f"[a1 w0 r0] {line}" for line in lines[-len(found) :]]
    assert len(found) > 30


def test_a_smaller_limit_removes_what_is_too_much(path: Path, tmp_path: Path) -> None:
    for limit_bytes in (8000, 800):
        log = RunLog(path, tmp_path / "places", limit_bytes)
        for number in range(300):
            log.write(limit_bytes, 0, 0, f"line {number:03}\n", 9 * number)
        log.close()
    assert sum(each.stat().st_size for each in tmp_path.glob("run.log*")) < 800 + 40


def excerpt(*parts: tuple[int, int, str]) -> Excerpt:
    named = [dict(zip(("offset", "line", "text"), part, strict=True)) for part in parts]
    return heard("excerpt", parts=named)


def test_of_an_excerpt_comes_what_is_not_there_and_what_was_left_out_is_said(
    opened: Open, path: Path
) -> None:
    log = opened()
    log.write(1, 0, 0, "one\n", 0)
    for _ in range(2):
        log.write_excerpt(1, 0, excerpt((0, 1, "one\ntwo\n"), (80, 9, "nine\n")))
    log.note(1, 0, 0, "that is all")
    assert path.read_text().splitlines() == [
        "[a1 w0 r0] one",
        "[a1 w0 r0] two",
        "[a1 w0 r0] [prefect-ft] output up to line 8 left out",
        "[a1 w0 r0] nine",
        "[a1 w0 r0] [prefect-ft] that is all",
    ]
