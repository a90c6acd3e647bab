"""`status` and `report`: what they say of runs that are over, that live, that are damaged, and of what is none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefect_ft.cli import main
from prefect_ft.clock import PhaseClock, utc_now
from prefect_ft.journal.attempts import PARTS
from prefect_ft.journal.judge import judge
from prefect_ft.journal.lines import Journal
from prefect_ft.journal.records import (
    AttemptLine,
    CheckpointLine,
    EndLine,
    HangLine,
    HangOverLine,
    PhaseLine,
    Sign,
    StragglerLine,
)
from prefect_ft.model import Evidence, Incident, Policy
from prefect_ft.run import JOURNAL, Run, new_run

POLICY = Policy(systems=("s0",), workers=1, max_num_restarts=3)
Printed = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """Run the command line; return what stands on standard output, after an end with 0 and nothing said aside."""

    def run(*arguments: object) -> str:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        return out

    return run


def crash(text: str = "ended by SIGSEGV", **fields: Any) -> Incident:
    known: dict[str, Any] = {
        "t": 10, "kind": "exit", "attempt": 1, "worker": 0, "signal": 11, "failure_class": "crash",
        "evidence": Evidence(rule="signal", text=text),
    }  # fmt: skip
    return Incident(**{**known, **fields})


def write_phase(run: Run, name: str, *incidents: Incident, status: str | None = "completed") -> Path:
    """Write a phase's journal: an attempt before each incident, and an end if it has one."""
    directory = run.add_phase(name, 0, {})
    journal = Journal(directory / JOURNAL)
    utc = utc_now()
    journal.append(PhaseLine(run=run.run_id, job="j", phase=name), t=0, utc=utc)
    for number, incident in enumerate(incidents, start=1):
        journal.append(
            AttemptLine(attempt=number, placement=("s0",), resume_step=None), t=journal.last_t, utc=utc
        )
        judge(journal, POLICY, incident, PhaseClock(journal.last_t), first_step=1, last_step=100 * number)
    if status is not None:
        journal.append(EndLine(status=status, reason="so it ended"), t=journal.last_t, utc=utc)
    journal.close()
    return directory


def unsigned(path: Path) -> bytes:
    """Return a journal as an older writer has it, without checksums."""
    return re.sub(rb',"sum":"[0-9a-f]{8}"}', b"}", path.read_bytes())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return new_run(tmp_path / "model", "j")


@pytest.fixture
def phase(run: Run) -> Path:
    """The directory of a phase with a crash and a completion."""
    return write_phase(run, "train", crash(), Incident(t=30, kind="completed", attempt=2))


# -- which run --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "report"])
def test_a_run_by_its_id_its_model_directory_or_a_phases_directory(
    run: Run, phase: Path, printed: Printed, command: str
) -> None:
    told = {printed(command, name) for name in (run.run_id, run.model_dir, phase)}
    assert len(told) == 1
    said = {"status": "train: completed at step 200, 1 restart", "report": "restarted once"}
    assert said[command] in told.pop()


def test_a_model_directory_is_its_latest_run(run: Run, phase: Path, printed: Printed) -> None:
    later = new_run(run.model_dir, "j")
    later.describe(started="2999-01-01T00:00:00.000Z")
    write_phase(later, "train", status="failed")
    assert printed("status", run.model_dir).startswith("train: failed")
    assert printed("status", run.run_id).startswith("train: completed")


def test_a_phases_directory_is_that_phase_alone(run: Run, phase: Path, printed: Printed) -> None:
    second = write_phase(run, "finetune", status=None)
    assert printed("status", second).splitlines() == ["finetune: running, 0 restarts"]
    assert len(printed("status", run.run_id).splitlines()) == 2


def test_where_versions_are_counted_the_status_tells_a_version(run: Run, printed: Printed) -> None:
    directory = write_phase(run, "train", status=None)
    journal = Journal(directory / JOURNAL)
    for step in (1, 2):
        journal.append(CheckpointLine(step=step, written_t=0.0, counted=True), t=journal.last_t)
    journal.close()
    assert printed("status", directory) == "train: running at version 2, 0 restarts\n"
    (summary,) = json.loads(printed("status", directory, "--json"))
    assert summary["final_step"] == 2
    assert "counted" not in summary


def test_a_run_of_which_no_phase_has_begun(run: Run, printed: Printed) -> None:
    assert printed("status", run.run_id) == "no phase has begun\n"
    assert json.loads(printed("status", run.run_id, "--json")) == []


def test_a_phase_that_is_just_beginning(run: Run, printed: Printed) -> None:
    run.add_phase("train", 0, {})
    assert printed("status", run.run_id) == "a phase that has only just begun: running, 0 restarts\n"


@pytest.mark.parametrize("command", ["status", "report"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("nowhere", "nowhere: no such run", id="nothing"),
        pytest.param(".", ".: no such run", id="a-directory-without-runs"),
        pytest.param("../../etc", "../../etc: no such run", id="a-path"),
        pytest.param("x" * 300, "cannot be looked at: File name too long", id="too-long"),
    ],
)
def test_what_is_no_run_is_an_error_of_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    name: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, name]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    assert message in err


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(
            lambda path: (path.unlink(), path.mkdir()), "no such run", id="a-directory-in-its-place"
        ),
        pytest.param(
            lambda path: path.write_bytes(unsigned(path).replace(b'"crash"', b'"crush"')),
            "journal.jsonl: the journal is damaged: class: got 'crush', expected one of hardware, ",
            id="an-incident-that-cannot-be-understood",
        ),
    ],
)
def test_a_damaged_journal_is_an_error_of_one_line(
    phase: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object], message: str
) -> None:
    damage(phase / JOURNAL)
    assert main(["status", str(phase)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_a_torn_last_line_is_passed_over(phase: Path, printed: Printed) -> None:
    path = phase / JOURNAL
    path.write_bytes(path.read_bytes()[:-5])
    assert printed("status", phase).startswith("train: running at step 200, 1 restart")


# -- what is said -----------------------------------------------------------------------------------


def test_the_report_tells_what_happened_and_what_it_cost(phase: Path, printed: Printed) -> None:
    out = printed("report", phase)
    for said in (
        "The run j completed at step 200",
        "  1  A training process crashed (worker 0, on s0, SIGSEGV)  after 10 s, attempt 1",
        "     ended by SIGSEGV\n",
        "     → Restarted in the same workers from scratch.\n",
        "100 steps repeated",
        f"log and journal: {phase}",
    ):
        assert said in out


@pytest.mark.parametrize(
    ("incident", "said"),
    [
        pytest.param(
            crash("[rank0]: [/tmp/x] [bold]no"), "[rank0]: [/tmp/x] [bold]no", id="looks-like-markup"
        ),
        pytest.param(crash("a\x1b]0;title\x07 \x1b[31mred"), "a red", id="orders-to-a-terminal"),
        pytest.param(crash("caf\udcc3\udca9"), "caf", id="no-text"),
        pytest.param(crash(signal=40), "signal 40", id="a-signal-without-a-name"),
        pytest.param(crash(signal=None, exit_code=3), "exit code 3", id="an-exit-code"),
        pytest.param(crash(signal=None, failure_class=None), "for an unknown reason", id="nothing-known"),
        pytest.param(crash(kind="in_place_failed"), "A worker is gone, although", id="no-exit"),
    ],
)
def test_what_a_rank_said_is_shown_as_it_is(
    run: Run, printed: Printed, incident: Incident, said: str
) -> None:
    write_phase(run, "train", incident, status="failed")
    out = printed("report", run.run_id)
    assert out.encode().decode() == out
    assert "\x1b" not in out
    assert said in out


def test_a_report_is_written_as_a_page(run: Run, phase: Path, printed: Printed, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    assert printed("report", run.run_id, "--html", path) == f"{path}\n"
    assert path.read_text().startswith("<!doctype html>")
    (document,) = json.loads(printed("report", run.run_id, "--html", path, "--json"))
    assert document["status"] == "completed"


def test_only_a_page_loads_what_makes_one(phase: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from prefect_ft.cli import main; code = main(sys.argv[1:]);"
        "print(code, 'jinja2' in sys.modules, file=sys.stderr)"
    )
    for words, is_loaded in (
        (["status", phase], False),
        (["report", phase], False),
        (["report", phase, "--html", tmp_path / "report.html"], True),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=True
        )
        assert (words[0], done.stderr) == (words[0], f"0 {is_loaded}\n")


def test_a_page_that_cannot_be_written_is_an_error_of_one_line(
    phase: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(phase), "--html", f"{phase}/no/such.html"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {phase}/no/such.html: --html: cannot be written")


def test_a_reader_who_has_seen_enough_is_no_error(phase: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = subprocess.run(
        [sys.executable, "-m", "prefect_ft.cli", "report", str(phase)],
        stdout=write_end,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(write_end)
    assert (process.returncode, process.stderr) == (0, b"")


def test_why_a_phase_failed_is_said(run: Run, printed: Printed) -> None:
    write_phase(run, "train", crash(), status="failed")
    assert "train: failed at step 100, 1 restart (1 restart_in_place): so it ended" in printed(
        "status", run.run_id
    )


@pytest.mark.parametrize("command", ["status", "report"])
def test_json_is_one_document_with_the_summaries(
    run: Run, phase: Path, printed: Printed, command: str
) -> None:
    (document,) = json.loads(printed(command, run.run_id, "--json"))
    assert set(document) == {
        "phase", "run", "job", "status", "reason", "restarts", "attempts", "time_s", "effective_ratio",
        "isolated_systems", "final_step", "hangs", "false_alarm_ratio", "stragglers", "warm",
        "warnings",
    }  # fmt: skip
    assert set(document["attempts"][0]) == {
        "number", "start", "end", "outcome", "class", "exit_code", "signal", "evidence", "cause", "blame",
        "rule", "action", "reason",
        "blamed", "resume_step", "unloaded_step", "first_step", "last_step", "steps_lost", "stages_s",
    }  # fmt: skip
    assert set(document["time_s"]) == {"total", *PARTS}
    shown = [
        (each["number"], each["class"], each["rule"], each["steps_lost"]) for each in document["attempts"]
    ]
    assert shown == [(1, "crash", "transient", 100), (2, None, "completed", None)]
    assert (document["status"], document["restarts"], document["final_step"]) == (
        "completed", {"restart_in_place": 1}, 200,
    )  # fmt: skip


def test_a_run_without_an_end_has_been_running_until_now(run: Run, printed: Printed) -> None:
    directory = write_phase(run, "train", status=None)
    path = directory / JOURNAL
    line = json.loads(unsigned(path))
    path.write_text(json.dumps({**line, "utc": "2026-01-02T03:04:05.678Z"}) + "\n")
    (document,) = json.loads(printed("status", run.run_id, "--json"))
    assert document["time_s"]["total"] > 1e6
    assert document["status"] == "running"


def test_a_report_says_where_it_hung_and_how_often_that_was_a_false_alarm(run: Run, printed: Printed) -> None:
    directory = write_phase(run, "train", status=None)
    journal = Journal(directory / JOURNAL)
    fields = {"attempt": 1, "response": "shadow", "ranks": (0, 3), "evidence": (Sign(text="no progress"),)}
    for number in (1, 2):
        more = {"n": number, "blamed": 3, "where": "rank 3 in read", "diagnosis": f"hang-{number}.txt"}
        journal.append(HangLine(**fields, **more), t=10 * number)
        journal.append(HangOverLine(n=number, went_on=number == 1, after_s=61.0), t=15 * number)
    journal.append(StragglerLine(rank=2), t=40)
    journal.close()
    told = printed("report", directory)
    assert (
        "  suspended in attempt 1 (shadow), rank 3 is to blame: rank 3 in read; it resumed by itself "
        "after 61 s (hang-1.txt)\n"
        "  suspended in attempt 1 (shadow), rank 3 is to blame: rank 3 in read (hang-2.txt)\n"
        "  false alarms: 50% of 2 that did not end an attempt\n"
        "  stragglers: rank 2\n"
    ) in told
