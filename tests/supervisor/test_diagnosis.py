"""What agents say of ranks that hang, kept for a person to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from heard import heard

from prefect_ft.decide.hang import Hang
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.diagnosis import diagnosis_of, write


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    """Nothing is started here."""


def told(*ranks: int) -> Any:
    """An agent's answer about these ranks."""
    process = {
        "pid": 5,
        "name": "python",
        "state": "S",
        "threads": 2,
        "waits_in": "futex",
        "kernel_stack": "k",
    }
    each = {"stacks": {"5": 'File "train.py", line 3, in step'}, "processes": [process]}
    return heard("diagnosis", ranks={str(rank): each for rank in ranks}).ranks


def test_only_a_workers_own_ranks_count(tmp_path: Path) -> None:
    attempt = Attempt(1, {0: 0, 1: 1})
    diagnosis = diagnosis_of({0: told(0, 1, 9), 1: told()}, attempt)
    assert [*diagnosis.found] == [0]
    hang = Hang(scope="all-workers", ranks=(0, 1), worker=None, blamed=None, limit_s=1.0, signs=())
    assert write(tmp_path, 3, hang, diagnosis, attempt) == "hang-3.txt"
    text = (tmp_path / "hang-3.txt").read_text()
    assert "== rank 0, worker 0: step None, stage None" in text
    assert "-- process 5 python: S, 2 threads, waits in futex" in text
    assert "rank 1" not in text
