"""`logs`: output as it was printed, of one attempt or worker, while it is printed, and what is no output."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prefect_ft import pieces
from prefect_ft.cli import main
from prefect_ft.run import Run, new_run

LINES = "[a1 w0 r0] a\n[a1 w1 r1] b\n[a2 w0 r0] c\n[a2 w1 r1] d\n"


def write_phase(run: Run, text: str, name: str = "train") -> Path:
    directory = run.add_phase(name, 0, {})
    (directory / "journal.jsonl").touch()
    append(directory, text)
    return directory


def append(directory: Path, text: str) -> None:
    with (directory / "run.log").open("a", encoding="utf-8", errors="surrogateescape") as log:
        log.write(text)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return new_run(tmp_path / "model", "j")


@contextmanager
def reading(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`prefect-ft logs` in a process of its own; it is ended if the test does not come to its end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "prefect_ft.cli", "logs", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


FILTERS = {
    "all": ((), "abcd"),
    "attempt": (("--attempt", "2"), "cd"),
    "worker": (("--worker", "1"), "bd"),
    "both": (("--attempt", "1", "--worker", "1"), "b"),
    "none-such": (("--attempt", "9"), ""),
}


@pytest.mark.parametrize(("words", "expected"), FILTERS.values(), ids=FILTERS.keys())
def test_only_what_was_asked_for_is_printed(
    run: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    write_phase(run, LINES)
    assert main(["logs", run.run_id, *words]) == 0
    assert capsys.readouterr() == (
        "".join(line for line in LINES.splitlines(True) if line[-2] in expected),
        "",
    )


@pytest.mark.parametrize("name", ["id", "model", "phase"])
def test_a_run_has_three_names(run: Run, capsys: pytest.CaptureFixture[str], name: str) -> None:
    phase = write_phase(run, LINES)
    assert main(["logs", {"id": run.run_id, "model": str(run.model_dir), "phase": str(phase)}[name]]) == 0
    assert capsys.readouterr().out == LINES


def test_phases_follow_each_other_but_a_phase_directory_is_one(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    write_phase(run, "[a1 w0 r0] first\n")
    second = write_phase(run, "[a1 w0 r0] second\n", "finetune")
    assert main(["logs", run.run_id]) == main(["logs", str(second)]) == 0
    assert capsys.readouterr().out == "[a1 w0 r0] first\n[a1 w0 r0] second\n[a1 w0 r0] second\n"


def test_json_is_one_object_a_line(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    write_phase(run, "[a1 w0 r3] [a2 w9 r9] é \x1b[1m\udcff\n")
    assert main(["logs", run.run_id, "--json"]) == 0
    assert list(map(json.loads, capsys.readouterr().out.splitlines())) == [
        {"attempt": 1, "worker": 0, "rank": 3, "text": "[a2 w9 r9] é \x1b[1m\ufffd"}
    ]


def test_bytes_are_printed_as_they_are(run: Run, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write_phase(run, "[a1 w0 r0] \udcff\r\n")
    assert main(["logs", run.run_id]) == 0
    assert capfdbinary.readouterr().out == b"[a1 w0 r0] \xff\r\n"


def test_lines_of_nobody_and_a_torn_last_line_are_passed_over(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    write_phase(run, "\nnobody\n[a1 w0] no\n[a1 w0 r0] yes\n[ax w0 r0] no\n[a1 w0 r0] torn")
    assert main(["logs", run.run_id]) == 0
    assert capsys.readouterr().out == "[a1 w0 r0] yes\n"


def test_a_phase_without_a_log_has_printed_nothing(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    (write_phase(run, "") / "run.log").unlink()
    assert main(["logs", run.run_id]) == 0
    assert capsys.readouterr() == ("", "")


def test_follow_goes_on_with_what_comes_until_the_run_has_ended(run: Run) -> None:
    first = write_phase(run, "[a1 w0 r0] before\n[a1 w0 r0] to")
    with reading(run.model_dir, "--follow") as process:
        assert line_of(process) == "[a1 w0 r0] before\n"
        append(first, "rn no more\n")
        assert line_of(process) == "[a1 w0 r0] torn no more\n"
        write_phase(run, "[a1 w0 r0] another phase\n", "finetune")
        assert line_of(process) == "[a1 w0 r0] another phase\n"
        append(first, "[a1 w0 r0] the last\n")
        run.describe(status="completed")
        assert process.communicate(timeout=30) == ("[a1 w0 r0] the last\n", "")
        assert process.returncode == 0


def test_the_pieces_of_a_log_are_one(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_phase(run, "[a1 w0 r0] the newest\n")
    for number in (9, 10, 2):
        (directory / f"run.log.{number}").write_text(f"[a1 w0 r0] piece {number}\n")
    (directory / "run.log.old").write_text("[a1 w0 r0] no piece\n")
    assert main(["logs", run.run_id]) == 0
    lines = [f"[a1 w0 r0] {what}\n" for what in ("piece 2", "piece 9", "piece 10", "the newest")]
    assert capsys.readouterr() == ("".join(lines), "")


def test_follow_goes_on_with_the_pieces_that_come(run: Run) -> None:
    log = write_phase(run, "[a1 w0 r0] one\n") / "run.log"
    with reading(run.model_dir, "--follow") as process:
        assert line_of(process) == "[a1 w0 r0] one\n"
        append(log.parent, "[a1 w0 r0] two\n")
        pieces.turn(log, 10_000)
        log.write_text("[a1 w0 r0] three\n")
        pieces.turn(log, 10_000)
        log.write_text("[a1 w0 r0] four\n")
        assert [line_of(process) for _ in range(3)] == [f"[a1 w0 r0] {n}\n" for n in ("two", "three", "four")]
        pieces.turn(log, 0)
        log.write_text("[a1 w0 r0] five\n")
        run.describe(status="completed")
        assert process.communicate(timeout=30) == ("[a1 w0 r0] five\n", "")


def test_follow_does_not_go_over_to_a_later_run(run: Run) -> None:
    write_phase(run, "[a1 w0 r0] mine\n")
    with reading(run.model_dir, "--follow") as process:
        assert line_of(process) == "[a1 w0 r0] mine\n"
        write_phase(new_run(run.model_dir, "j"), "[a1 w0 r0] another's\n")
        run.describe(status="failed")
        assert process.communicate(timeout=10) == ("", "")
        assert process.returncode == 0


def test_follow_ends_where_the_run_is_removed(run: Run) -> None:
    write_phase(run, LINES)
    with reading(run.run_id, "--follow") as process:
        line_of(process)
        shutil.rmtree(run.root)
        _, err = process.communicate(timeout=30)
        assert (process.returncode, err.count("\n"), "run.json: is damaged, or gone" in err) == (2, 1, True)


def test_ctrl_c_is_how_one_stops_following(run: Run) -> None:
    write_phase(run, LINES)
    with reading(run.run_id, "--follow") as process:
        line_of(process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (0, "")


def test_following_what_has_ended_ends_at_once(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    write_phase(run, LINES)
    run.describe(status="failed")
    assert main(["logs", run.run_id, "--follow"]) == 0
    assert capsys.readouterr().out == LINES


def test_a_phase_that_was_moved_away_alone_has_ended(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phase = write_phase(run, LINES).rename(tmp_path / "elsewhere")
    assert main(["logs", str(phase), "--follow"]) == 0
    assert capsys.readouterr().out == LINES


def test_a_reader_that_has_gone_is_no_error_to_tell(run: Run) -> None:
    write_phase(run, LINES * 10_000)
    with reading(run.run_id) as process:
        line_of(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(30) == 1
        assert process.stderr is not None
        assert process.stderr.read() == ""


def cut(run: Run) -> str:
    os.truncate(run.root / "run.json", 30)
    return "run.json: is damaged"


def hide_log(run: Run) -> str:
    log = run.model_dir / run.record()["phases"][0]["directory"] / "run.log"
    log.unlink()
    log.mkdir()
    return "run.log: cannot be read: Is a directory"


@pytest.mark.parametrize("damage", [cut, hide_log], ids=["run.json", "run.log"])
def test_what_cannot_be_read_is_one_line(
    run: Run, capsys: pytest.CaptureFixture[str], damage: object
) -> None:
    write_phase(run, LINES)
    assert callable(damage)
    message = damage(run)
    assert main(["logs", run.run_id]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), message in err) == ("", 1, True), err


@pytest.mark.parametrize("name", ["no-such-run", "", "/", "..", "x" * 300])
def test_a_run_that_is_none(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    phase = write_phase(run, LINES)
    monkeypatch.chdir(phase if name == "" else "/")
    assert main(["logs", name]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
