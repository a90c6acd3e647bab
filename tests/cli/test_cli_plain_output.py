"""Whatever a path, a journal, a log or an error holds: no command says anything to the terminal but text."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from prefect_ft.cli import main
from prefect_ft.clock import utc_now
from prefect_ft.journal.lines import Journal
from prefect_ft.journal.records import AttemptLine, PhaseLine, ProposedLine, WarmLine, WarningLine
from prefect_ft.model import Counters, Decision, Evidence, Incident
from prefect_ft.run import JOURNAL, Run, new_run

HOSTILE = "\x1b\x1b[31m[2J\x1bc\x9b31m\x9d0;t\x9c\u202eevil"
"""Sequences: nested, without a bracket, in one byte, that set the title, and that turn the direction."""

Paths = dict[str, Path]


def unseen(text: str) -> set[str]:
    return {char for char in text if not char.isprintable()} - {"\n", "\t"}


def write_journal(run: Run) -> Path:
    """A phase whose second decision waits for a person."""
    directory = run.add_phase("train", 0, {})
    journal = Journal(directory / JOURNAL)
    said, utc = f"said {HOSTILE}", utc_now()
    head = {"run": run.run_id, "job": said, "phase": said, "systems": (said, "s1")}
    journal.append(PhaseLine(**head), t=0, utc=utc)
    journal.append(AttemptLine(attempt=1, placement=(said,), resume_step=None), t=1, utc=utc)
    evidence = Evidence(rule=said, text=said, file=said, line=3, hint=said)
    incident = Incident(t=2, kind="exit", attempt=1, worker=0, exit_code=1, evidence=evidence)
    journal.append_incident(incident, n=1, utc=utc, ended_t=2, first_step=1, last_step=9, deaths=())
    decision = Decision(
        n=1, rule=said, action="rebuild", reason=said, placement=(said,), counters=Counters(), isolate=(said,)
    )
    journal.append_decision(decision, t=3, utc=utc)
    journal.append(AttemptLine(attempt=2, placement=("s1",), resume_step=None), t=4, utc=utc)
    journal.append(WarningLine(attempt=1, what="x", text=said), t=5, utc=utc)
    warm = {"parked": 0, "modules": 0, "memory_kb": 0, "left_out": {}, "why_cold": said}
    journal.append(WarmLine(worker=0, **warm), t=5, utc=utc)
    second = Incident(t=6, kind="exit", attempt=2, worker=0, exit_code=1, evidence=evidence)
    journal.append_incident(second, n=2, utc=utc, ended_t=6, first_step=1, last_step=9, deaths=())
    proposed = ProposedLine.about(replace(decision, n=2), until=utc, default=said)
    journal.append(proposed, t=7, utc=utc)
    journal.close()
    return directory


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A run and files beside it, with names as hostile as what they hold."""
    directory = tmp_path / f"a{HOSTILE}"
    directory.mkdir()
    run = new_run(directory / "model", f"job {HOSTILE}")
    phase = write_journal(run)
    (phase / "run.log").write_text(f"[a1 w0 r0] {HOSTILE}\tValueError\n")
    log = directory / "rank0.log"
    log.write_text(
        f'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: {HOSTILE}\n'
    )
    job = directory / "job.yaml"
    phases = [{"name": "train", "command": ["true"]}]
    systems = {"type": "process", "systems": ["s1"], "workers": 1}
    job.write_text(
        yaml.safe_dump({"name": "j", "model_dir": "m", "phases": phases, "infrastructure": systems})
    )
    bad = directory / "bad.yaml"
    bad.write_text(yaml.safe_dump({f"na{HOSTILE}": HOSTILE}))
    pool = directory / "pool.json"
    pool.write_text("{")
    return {
        "run": run.model_dir, "phase": phase, "journal": phase / JOURNAL, "log": log, "job": job, "bad": bad,
        "pool-file": pool, "none": directory / "none", "html": directory / "report.html", "directory": directory,
    }  # fmt: skip


COMMANDS: dict[str, list[str]] = {
    "status": ["status", "run"],
    "report": ["report", "run"],
    "report-html": ["report", "run", "--html", "html"],
    "html-error": ["report", "run", "--html", "directory"],
    "list": ["list"],
    "list-one": ["list", "run"],
    "list-none": ["list", "directory"],
    "approve": ["approve", "run", "--by", HOSTILE],
    "approve-refused": ["approve", "run", "--isolate", HOSTILE],
    "classify": ["classify", "log"],
    "classify-json": ["classify", "log", "--json"],
    "pool-list": ["pool", "list", "--file", "pool-file"],
    "pool-release": ["pool", "release", HOSTILE, "--file", "pool-file"],
    "replay": ["replay", "job", "journal", "--phase", "train"],
    "replay-phase": ["replay", "job", "journal"],
    "replay-diff": ["replay", "job", "journal", "--phase", "train", "--diff"],
    "validate": ["validate", "job"],
    "validate-set": ["validate", "job", "--set", f"name={HOSTILE}"],
    "invalid": ["validate", "bad"],
    "no-run": ["status", "none"],
    "cancel": ["cancel", "run"],
    "clean": ["clean", "--dry-run"],
    "json": ["status", "run", "--json"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_command_says_nothing_but_text(
    paths: Paths, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    main([str(paths.get(word, word)) for word in words])
    out, err = capsys.readouterr()
    assert out or err
    assert not unseen(out)
    assert not unseen(err)


def test_words_that_are_not_known_are_told_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["status", "run", HOSTILE])
    assert not unseen(capsys.readouterr().err)


def read_all(descriptor: int) -> bytes:
    found = b""
    while True:
        try:
            piece = os.read(descriptor, 1 << 16)
        except OSError:  # the other side has closed it
            return found
        if not piece:
            return found
        found += piece


def in_terminal(*words: str) -> str:
    """What a command writes to a terminal, without the line ends that a terminal makes."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "prefect_ft.cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        said = read_all(ours)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return said.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_a_log_is_text_in_a_terminal(paths: Paths, more: list[str]) -> None:
    said = in_terminal("logs", str(paths["phase"]), *more)
    assert "evil" in said
    assert not unseen(said)


def test_a_report_in_a_terminal_is_coloured_by_us_alone(paths: Paths) -> None:
    assert not unseen(re.sub(r"\x1b\[[0-9;]*m", "", in_terminal("report", str(paths["phase"]))))


def test_a_log_goes_through_a_pipe_as_it_is(paths: Paths, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["logs", str(paths["phase"])]) == 0
    assert capfdbinary.readouterr().out == (paths["phase"] / "run.log").read_bytes()


def test_json_is_read_back_as_it_was(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(paths["phase"]), "--json"]) == 0
    (summary,) = json.loads(capsys.readouterr().out)
    assert summary["job"] == f"said {HOSTILE}"
