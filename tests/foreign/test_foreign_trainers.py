"""Trainers that nobody here wrote finish, whatever is done to them, and with the result of an undisturbed run.

`PREFECT_FT_MATRIX=FILE` keeps a line for each cell; `python tests/foreign/table.py FILE` makes a table of them.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from disturbed import FAULTS, Fault, Run
from foreign_trainers import TRAINERS, Trainer, described

from prefect_ft.journal.records import NOT_RESUMED, AttemptLine, WarningLine
from prefect_ft.journal.summary import summarise

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

Begin = Callable[[Trainer, Fault], Run]

_undisturbed: dict[str, dict[str, Any]] = {}
"""Results, by the trainer's name."""


@pytest.fixture
def begin(tmp_path: Path, prefect_server: None) -> Iterator[Begin]:
    """Begin a run of a trainer, and end what is left of it."""
    runs: list[Run] = []

    def make(trainer: Trainer, fault: Fault) -> Run:
        directory = tmp_path / f"run-{len(runs)}"
        directory.mkdir()
        runs.append(Run(trainer, directory, trainer.interpreter(), fault.fields))
        runs[-1].begin("run", str(runs[-1].job))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def undisturbed(trainer: Trainer, begin: Begin) -> dict[str, Any]:
    """Return the result of a run to which nothing happens."""
    if trainer.name not in _undisturbed:
        run = begin(trainer, FAULTS[0])
        assert run.end() == 0, run.told()
        _undisturbed[trainer.name] = run.result()
    return _undisturbed[trainer.name]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer.name)
def test_it_finishes_with_the_undisturbed_result(trainer: Trainer, fault: Fault, begin: Begin) -> None:
    expected = undisturbed(trainer, begin)
    began = time.monotonic()
    run = begin(trainer, fault)
    cell: dict[str, Any] = {"trainer": trainer.name, "fault": fault.name, "finished": False, "passed": False}
    try:
        run.wait_for(trainer.under_way)
        fault.inject(run)
        exit_code = run.end()
        cell |= {"finished": exit_code == 0, "rules": run.rules()}
        assert exit_code == 0, run.told()
        result = run.result()
        cell |= {"result": result, "expected": expected, "same": result["weights"] == expected["weights"]}
        assert tuple(cell["rules"]) in fault.rules
        assert result["steps"] == trainer.steps
        assert cell["same"] or not trainer.is_exact, (result, expected)
        _assert_resumed(run, fault)
        cell["passed"] = True
    finally:
        _keep(trainer, cell | {"seconds": round(time.monotonic() - began, 1)})


def test_one_that_does_not_resume_is_told_of(begin: Begin) -> None:
    """It finishes all the same; what it had done before counts as lost."""
    trainer = next(each for each in TRAINERS if each.name == "hugging-face")
    fault = next(each for each in FAULTS if each.name == "sigkill")
    run = begin(replace(trainer, env={**trainer.env, "FOREIGN_BEGINS_ANEW": "1"}), fault)
    run.wait_for(trainer.under_way)
    fault.inject(run)
    assert run.end() == 0, run.told()
    (warning,) = _unresumed(run)
    assert warning.startswith("attempt 2 was given step ")
    first, second = summarise(run.journal()).attempts
    assert second.unloaded_step
    assert first.end is not None
    assert summarise(run.journal()).time_s["recompute"] >= first.end - first.start - 0.01


def _unresumed(run: Run) -> list[str]:
    lines = (line for line in run.journal() if isinstance(line, WarningLine))
    return [line.text for line in lines if line.what == NOT_RESUMED]


def _assert_resumed(run: Run, fault: Fault) -> None:
    """Restarts go on from a checkpoint, and without its orchestrator a run goes on without any."""
    attempts = [line for line in run.journal() if isinstance(line, AttemptLine)]
    assert (len(attempts) - len(run.aborts()) > 1) == fault.restarts
    assert None not in [attempt.resume_path for attempt in attempts[1:]]
    if fault.restarts:
        last = f"[a{attempts[-1].attempt} "
        lines = [line for line in run.log().splitlines() if line.startswith(last)]
        assert any(re.search(run.trainer.resumed, line) for line in lines)
    assert _unresumed(run) == []
    assert run.ranks() == {}


def _keep(trainer: Trainer, cell: dict[str, Any]) -> None:
    if path := os.environ.get("PREFECT_FT_MATRIX"):
        about = {"version": described(trainer), "style": trainer.style, "exact": trainer.is_exact}
        with Path(path).open("a") as file:
            file.write(json.dumps({**cell, **about}) + "\n")
