"""run.log: every line says whose it is, no byte is changed, and a full disk costs lines and not the run."""

from __future__ import annotations

from pathlib import Path

from prefect_ft.supervisor.runlog import RunLog


def test_every_line_has_attempt_worker_and_rank_before_it(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    log = RunLog(path)
    log.write(1, 0, 0, "one\ntwo\n")
    log.write(2, 1, 13, "\n")
    log.write(2, 1, 13, "no end of line")
    log.write(2, 1, 13, "half a bar\r100%\n")
    log.close()
    assert path.read_bytes() == (
        b"[a1 w0 r0] one\n[a1 w0 r0] two\n[a2 w1 r13] \n[a2 w1 r13] no end of line\n[a2 w1 r13] half a bar\r100%\n"
    )
    assert log.lost_lines == 0


def test_bytes_that_are_no_text_stay_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    log = RunLog(path)
    log.write(1, 0, 0, b"\xff\x00\xe2\x82 \xc3\xa9\n".decode("utf-8", "surrogateescape"))
    assert path.read_bytes() == b"[a1 w0 r0] \xff\x00\xe2\x82 \xc3\xa9\n"


def test_a_log_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    for attempt in (1, 2):
        log = RunLog(path)
        log.write(attempt, 0, 0, "line\n")
        log.close()
    assert path.read_bytes() == b"[a1 w0 r0] line\n[a2 w0 r0] line\n"


def test_a_full_disk_loses_whole_lines_and_counts_them(small_disk: Path) -> None:
    path = small_disk / "run.log"
    log = RunLog(path)
    log.write(1, 0, 0, "first\n")
    log.write(1, 0, 0, "x" * 300_000 + "\ny\n")
    assert log.lost_lines == 2
    log.write(1, 0, 0, "last\n")
    assert path.read_bytes() == b"[a1 w0 r0] first\n[a1 w0 r0] last\n"
