"""The live view: what is told as lines in a pipe, what stands in the table, and a pipe that breaks."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from prefect_ft.cli.view import _View, watching
from prefect_ft.config import JobConfig
from prefect_ft.model import Counters, Decision, Evidence, Incident
from prefect_ft.observe import (
    AttemptStarted,
    CheckpointVerified,
    Decided,
    Fact,
    Notice,
    PhaseEnded,
    PhaseStarted,
    StepReached,
    tell,
)

JOB = JobConfig.model_validate(
    {
        "name": "test",
        "model_dir": "model",
        "phases": [
            {"name": "train", "command": ["true"], "target_step": 400},
            {"name": "next", "command": ["true"]},
        ],
    }
)
STARTED = PhaseStarted(run_id="r1", phase="train", index=0, phases=2, directory=Path("d"), target_step=400)
RUNNING = AttemptStarted(phase="train", attempt=1, ranks=4, placement=("s0", "s1"), resume_step=None)
AGAIN = AttemptStarted(phase="train", attempt=2, ranks=4, placement=("s0", "s0"), resume_step=0)


def decided(rule: str, action: Any, text: str | None = None) -> Decided:
    decision = Decision(n=1, rule=rule, action=action, reason="so it is", placement=(), counters=Counters())
    evidence = None if text is None else Evidence(rule="signal", text=text)
    return Decided(
        phase="train", attempt=1, incident=Incident(t=0, kind="exit", evidence=evidence), decision=decision
    )


@pytest.mark.parametrize(
    ("facts", "lines"),
    [
        pytest.param([STARTED], ["train: phase 1 of 2, run r1"], id="phase"),
        pytest.param([RUNNING], ["train: attempt 1: 4 ranks on s0, s1, from scratch"], id="from-scratch"),
        pytest.param([AGAIN], ["train: attempt 2: 4 ranks on s0, from step 0"], id="from-a-step"),
        pytest.param(
            [replace(AGAIN, resume_step=3, counted=True)],
            ["train: attempt 2: 4 ranks on s0, from version 3"],
            id="from-a-version",
        ),
        pytest.param(
            [replace(RUNNING, placement=tuple(f"s{number}" for number in range(500)))],
            [
                f"train: attempt 1: 4 ranks on {', '.join(f's{n}' for n in range(16))} and 484 more, from scratch"
            ],
            id="hundreds-of-systems",
        ),
        pytest.param(
            [decided("transient", "rebuild", "it [/said] so")],
            ["train: attempt 1 ended: it [/said] so", "train: transient → rebuild: so it is"],
            id="decision",
        ),
        pytest.param([decided("completed", "complete")], [], id="completion-is-told-as-the-phases-end"),
        pytest.param([PhaseEnded(phase="train", status="failed", reason="no")], ["train: failed"], id="end"),
        pytest.param([Notice(text="\x1b[31mbeware")], ["beware"], id="notice"),
        pytest.param(
            [StepReached(phase="train", attempt=1, step=step, stage=None) for step in (1, 2, 3)],
            ["train: step 1"],
            id="steps-not-too-often",
        ),
        pytest.param([CheckpointVerified(phase="train", attempt=1, step=5, path="p")], [], id="checkpoint"),
    ],
)
def test_what_a_pipe_is_told(facts: list[Fact], lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with watching(JOB):
        for fact in facts:
            tell(fact)
    out, err = capsys.readouterr()
    assert out == ""
    assert [line[10:] for line in err.splitlines()] == lines


def rows(*facts: Fact) -> list[list[str]]:
    """The table as a terminal shows it."""
    console = Console(width=200, force_terminal=True, color_system=None, file=io.StringIO())
    view = _View(JOB, console)
    for fact in facts:
        view.take(fact)
    with console.capture() as shown:
        console.print(view.table())
    return [line.split() for line in shown.get().splitlines()[1:]]


@pytest.mark.parametrize(
    ("facts", "row"),
    [
        pytest.param([], "train waiting", id="waiting"),
        pytest.param([STARTED, RUNNING], "train running 1", id="running"),
        pytest.param(
            [RUNNING, StepReached(phase="train", attempt=1, step=0, stage="[/x]")],
            "train running 1 0 of 400 [/x]",
            id="step-and-stage",
        ),
        pytest.param(
            [RUNNING, CheckpointVerified(phase="train", attempt=1, step=0, path="p")],
            "train running 1 step 0",
            id="checkpoint",
        ),
        pytest.param(
            [RUNNING, CheckpointVerified(phase="train", attempt=1, step=3, path="p", counted=True)],
            "train running 1 version 3",
            id="version",
        ),
        pytest.param([RUNNING, decided("transient", "rebuild")], "train restarting 1 1", id="restarting"),
        pytest.param([RUNNING, decided("in-process", "continue")], "train running 1", id="reported-only"),
        pytest.param(
            [PhaseEnded(phase="train", status="completed", reason="")], "train completed", id="completed"
        ),
    ],
)
def test_the_table_of_a_terminal(facts: list[Fact], row: str) -> None:
    assert rows(*facts) == [row.split(), ["next", "waiting"]]


def test_a_run_goes_on_when_nobody_reads_its_messages_any_more() -> None:
    code = """
from prefect_ft.cli.view import watching
from prefect_ft.config import JobConfig
from prefect_ft.observe import Notice, tell
job = JobConfig.model_validate({"name": "x", "model_dir": "m", "phases": [{"name": "x", "command": ["x"]}]})
with watching(job):
    for _ in range(3):
        tell(Notice(text="hello"))
print("done")
"""
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=write_end, timeout=60, check=False
    )
    os.close(write_end)
    assert (process.returncode, process.stdout) == (0, b"done\n")
