"""From which tenure a phase is moved to the present one, by its journal."""

from __future__ import annotations

import pytest

from prefect_ft.journal.records import AttemptLine, HandOverLine, Line, TenureLine
from prefect_ft.supervisor.moving import left_behind, workers_in

FIRST = TenureLine(name="slurm-17", systems=("n0", "n1"))
NEXT = TenureLine(name="slurm-18", systems=("n2", "n3"))


def attempt(*placement: str) -> Line:
    return AttemptLine(attempt=1, placement=placement)


def left(*, is_clean: bool) -> Line:
    return HandOverLine(attempt=1, reason="its time is up", is_clean=is_clean)


@pytest.mark.parametrize(
    ("lines", "before"),
    [
        pytest.param([], None, id="none-yet"),
        pytest.param([FIRST, attempt("n0")], None, id="it-runs-here"),
        pytest.param([FIRST, attempt("n0"), left(is_clean=True)], "slurm-17", id="left-and-not-moved"),
        pytest.param([FIRST, attempt("n0"), left(is_clean=False)], None, id="others-were-ending-it"),
        pytest.param([FIRST, left(is_clean=True), attempt("n0")], None, id="an-attempt-since"),
    ],
)
def test_what_a_phase_comes_from_in_the_same_tenure(lines: list[Line], before: str | None) -> None:
    assert left_behind(lines, "slurm-17") == before


def test_what_a_phase_comes_from_in_another_tenure() -> None:
    lines = [FIRST, attempt("n0"), left(is_clean=True)]
    assert left_behind(lines, "slurm-18") == "slurm-17"
    assert left_behind([*lines, NEXT], "slurm-18") == "slurm-17", "the one before did not come to judge it"


def test_the_last_attempt_says_how_many_workers_there_are() -> None:
    assert workers_in([FIRST]) is None
    assert workers_in([FIRST, attempt("n0", "n1"), attempt("n0"), NEXT]) == 1
