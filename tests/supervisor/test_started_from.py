"""The step that a decision names is the step that the ranks are given, or the journal says why not.

In every layout of checkpoints, through every action, and whatever happens to the files in between.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from attempts import Make
from layouts import EXAMPLES, Example, at_step, write

from prefect_ft.journal.records import AttemptLine
from prefect_ft.model import Decision

PUBLISH = """
import shutil
def publish(step):
    for name in sorted(os.listdir(f"stock/{step}"), key=lambda name: "atest" in name):
        source, scratch, target = f"stock/{step}/{name}", f"ck/.{name}.new", f"ck/{name}"
        (shutil.copytree if os.path.isdir(source) else shutil.copyfile)(source, scratch)
        if os.path.isdir(target): shutil.rmtree(target)
        os.replace(scratch, target)
    while f'"step":{step},"path"' not in open("journal.jsonl").read(): time.sleep(0.005)
LOST = "NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus"
if restarts == 0: publish(200); publish(300); os.abort()
if restarts == 1: publish(400); os.abort()
if restarts == 2: os.abort()
if restarts == 3: print(LOST); os.abort()
if restarts == 4: publish(500); print(LOST); os.abort()
if restarts == 5: raise FloatingPointError("loss is nan")
if restarts == 6: raise zipfile.BadZipFile("no")
"""
"""What each attempt saves, and what it dies of: one for each action and each rule that goes back."""

ACTIONS = [
    "transient: restart_in_place",
    "transient: restart_in_place",
    "transient: rebuild",
    "node-lost: replace_workers",
    "node-lost: isolate_and_rebuild",
    "numeric: restart_in_place",
    "checkpoint-unreadable: restart_in_place",
    "completed: complete",
]

USUAL = (0, 8, 13)
"""In every run of the tests: a file that only time proves, a directory with a marker, one that tells of its commit."""


def plain_file() -> Example:
    return Example("file", "step-200.raw", {"": b"weights"}, [])


CASES = [
    pytest.param(example, id=f"{number}-{example.layout}", marks=[] if number in USUAL else pytest.mark.long)
    for number, example in enumerate([plain_file(), *EXAMPLES])
]


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    return tmp_path / "stock"


@pytest.mark.parametrize("example", CASES)
@pytest.mark.parametrize("seed", [1, 2])
def test_ranks_start_where_it_was_decided_or_the_journal_says_why(
    make: Make, tmp_path: Path, stock: Path, example: Example, seed: int
) -> None:
    for step in (200, 300, 400, 500):
        moved = at_step(example, step)
        write(stock / str(step), moved.name, moved.files)
    phase = make(
        PUBLISH,
        checking={"settle_s": 3600.0},
        systems=("s0", "s1", "s2"),
        max_worker_replacements=1,
        restart_delay_s=0.01,  # so that every start looks again
    )
    random, harmed = Random(seed), []
    while not phase.decided or not phase.decided[-1].endswith(("complete", "fail")):
        phase.decided.append(phase.attempt())
        if seed != 1 and random.random() < 0.4:
            harmed += harm(tmp_path / "ck", phase.journal.history()[-1].decision)
    assert phase.decided == ACTIONS

    given = [int((re.findall("[0-9]+", name) or [0])[-1]) for name in phase.resumed_from()]
    attempts = [line for line in phase.journal.lines if isinstance(line, AttemptLine)]
    decided = [
        None,
        *[entry.decision.resume_step for entry in phase.journal.history() if entry.decision][:-1],
    ]
    assert [line.started_from or 0 for line in attempts] == given
    assert [line.decided_step for line in attempts] == decided
    for line in attempts:
        assert (line.why is None) == (line.decided_step in (None, line.started_from)), line
    ended = [entry.incident.started_from for entry in phase.journal.history()]
    assert ended == given
    if not harmed:
        assert given == [0, 300, 400, 400, 400, 500, 400, 300]


def harm(directory: Path, decision: Decision | None) -> list[Any]:
    """Delete the checkpoint that was just decided on."""
    assert decision is not None
    step = str(decision.resume_step)
    hit = [path for path in directory.iterdir() if step in path.name and "manifest" not in path.name]
    for path in hit:
        (shutil.rmtree if path.is_dir() else os.remove)(path)
    return hit
