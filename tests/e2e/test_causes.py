"""Four causes of bad numbers planted into real trainings: who is found at fault, at what cost, and what is trained."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torches import torch
from without_prefect import to_the_end

from prefect_ft.config import JobConfig
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import DecisionLine
from prefect_ft.orchestrate.phase import PhaseExecution
from prefect_ft.orchestrate.run import begin_run, conclude, held
from prefect_ft.run import vacancy

__all__ = ["torch"]

TRAIN = Path(__file__).parent / "causes" / "train.py"
STEPS = 40
CAUSES = {"batch": "data_or_code", "system": "system", "checkpoint": "checkpoint", "chance": "chance"}
RESTARTS = {"restart_in_place", "replace_workers", "rebuild", "isolate_and_rebuild"}


class Reference:
    """A training in one process that skips steps from the start."""

    def __init__(self, python: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(TRAIN.parents[3])}
        self._process = subprocess.Popen(
            [python, str(TRAIN), "reference", str(STEPS)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def digest(self, world: int, windows: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{world} {windows}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate(timeout=30)


@pytest.fixture(scope="module")
def reference(torch: str) -> Iterator[Reference]:
    made = Reference(torch)
    yield made
    made.close()


class Outcome(NamedTuple):
    """What became of a run: what was found at fault in the end, and whether the weights are those of the reference."""

    status: str
    found: str | None
    systems: tuple[str, ...]
    restarts: int
    windows: str
    is_equal: bool
    took_s: float
    rules: tuple[str, ...]


def run(python: str, directory: Path, cause: str, seed: int, world: int, reference: Reference) -> Outcome:
    """Run one training in a directory of its own, on two workers with a spare."""
    (directory / "ck").mkdir(parents=True)
    job: dict[str, Any] = {
        "name": "causes",
        "model_dir": "model",
        "stop_grace_s": 0,
        "infrastructure": {"type": "process", "systems": ["s0", "s1", "s2"], "workers": 2},
        "autorestart": {
            "max_num_restarts": 3, "max_worker_replacements": 3, "numeric_elsewhere": True, "skip_steps": 4,
        },
        "env": {"CAUSE": cause, "SEED": seed, "STEPS": STEPS},
        "phases": [
            {
                "name": "train",
                "command": [python, str(TRAIN)],
                "nproc_per_worker": world // 2,
                "checkpoints": {"path": "ck"},
                "warm": ["torch", "torch.distributed"],
            }
        ],
    }  # fmt: skip
    made = JobConfig.model_validate(job).at(directory)
    began_s = time.monotonic()
    with held(begin_run(made, vacancy(Path(made.model_dir))), made) as (holding, stop):
        status = PhaseExecution(made, 0, holding, stop).execute(to_the_end).status
        conclude(holding, status)
    took_s = time.monotonic() - began_s
    lines = read_lines(next(directory.glob("model/*_restartable/journal.jsonl")))
    decisions = [line.decision for line in lines if isinstance(line, DecisionLine)]
    found = [each.at_fault for each in decisions if each.at_fault is not None]
    skipped = next((each.skip_steps for each in reversed(decisions) if each.skip_steps), ())
    windows = ",".join(f"{first}-{last}" for first, last in skipped)
    digest = directory / "digest"
    return Outcome(
        status=status,
        found=found[-1].what if found else None,
        systems=found[-1].systems if found else (),
        restarts=sum(each.action in RESTARTS for each in decisions),
        windows=windows,
        is_equal=digest.exists() and digest.read_text() == reference.digest(world, windows),
        took_s=took_s,
        rules=tuple(each.rule for each in decisions),
    )


FOUR = pytest.mark.long  # ranks: shows what two show, and costs twice as much


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 4])
def test_what_the_reference_trains_is_what_ranks_train(
    torch: str, tmp_path: Path, reference: Reference, world: int
) -> None:
    """Nothing is planted."""
    outcome = run(torch, tmp_path / "run", "none", 0, world, reference)
    assert (outcome.status, outcome.restarts, outcome.windows, outcome.is_equal) == ("completed", 0, "", True)
    assert reference.digest(world, "") != reference.digest(world, "7-7"), "a step that is skipped is seen"


@pytest.mark.parametrize(
    ("cause", "world"),
    [
        pytest.param("batch", 2, marks=pytest.mark.long),
        pytest.param("system", 2, marks=pytest.mark.long),
        pytest.param("checkpoint", 2, marks=pytest.mark.long),
        pytest.param("chance", 2, marks=pytest.mark.long),
        pytest.param("batch", 4, marks=FOUR),
    ],
)
def test_the_cause_is_found(torch: str, tmp_path: Path, reference: Reference, cause: str, world: int) -> None:
    outcome = run(torch, tmp_path / "run", cause, 0, world, reference)
    assert (outcome.status, outcome.found, outcome.is_equal) == ("completed", CAUSES[cause], True)
    assert outcome.restarts <= 3
    assert bool(outcome.windows) is (cause == "batch")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_causes_are_found_in_nearly_all_runs(
    torch: str, tmp_path: Path, reference: Reference, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fifty seeds of each, on two and four ranks in turn; `PREFECT_FT_CAUSES_S` bounds the time, in seconds."""

    def say(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    bound_s = float(os.environ.get("PREFECT_FT_CAUSES_S", "3000"))
    began_s = time.monotonic()
    runs: Counter[str] = Counter()
    right: Counter[str] = Counter()
    most_restarts: Counter[str] = Counter()
    wrong = []
    for seed in range(50):
        for number, cause in enumerate(CAUSES):
            world = 2 if (seed + number) % 2 == 0 else 4
            if time.monotonic() - began_s > bound_s:
                break
            outcome = run(torch, tmp_path / f"{cause}-{seed}", cause, seed, world, reference)
            runs[cause] += 1
            is_right = outcome.status == "completed" and outcome.found == CAUSES[cause] and outcome.is_equal
            right[cause] += is_right and outcome.restarts <= 3
            most_restarts[cause] = max(most_restarts[cause], outcome.restarts)
            if not is_right:
                wrong.append((cause, seed, world, outcome))
            say(f"{cause} {seed} {world} {outcome}")
    for cause in CAUSES:
        say(f"{cause}: {right[cause]} of {runs[cause]}, up to {most_restarts[cause]} restarts")
    assert all(outcome.is_equal for _, _, _, outcome in wrong), wrong
    assert all(right[cause] >= 0.95 * runs[cause] > 0 for cause in CAUSES), wrong
    assert max(most_restarts.values()) <= 3
