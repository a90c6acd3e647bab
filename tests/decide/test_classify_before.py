"""Lines like those before the last traceback show that a run went on."""

from __future__ import annotations

import pytest

from prefect_ft.decide.classify.before import Before
from prefect_ft.decide.classify.heads import read_line

FOLDS = [f"accuracy of fold {number}" for number in range(3)]


@pytest.mark.parametrize(
    ("above", "last", "expected"),
    [
        pytest.param(FOLDS, ["accuracy of fold 77"] * 3, True, id="but-for-numbers"),
        pytest.param(FOLDS, ["accuracy of fold 77"] * 2, False, id="too-few"),
        pytest.param(FOLDS, ["precision of fold 7"] * 3, False, id="others"),
        pytest.param(["fold 1", "fold 2"], ["fold 3"] * 3, False, id="too-short"),
        pytest.param([], FOLDS, False, id="nothing-before"),
        pytest.param(
            [f"  {line}" for line in FOLDS], [f"  {line}" for line in FOLDS], False, id="of-a-message"
        ),
        pytest.param(["5%\raccuracy of fold 1\r"], FOLDS, True, id="behind-a-bar"),
        pytest.param(FOLDS, [f"[rank1]: {line}" for line in FOLDS], False, id="of-another-rank"),
        pytest.param([f"[rank1]: {line}" for line in FOLDS], FOLDS, False, id="after-another-rank"),
    ],
)
def test_which_lines_show_that_a_run_went_on(above: list[str], last: list[str], expected: bool) -> None:
    before = Before()
    before.keep("\n".join(above).encode(), 100, "")
    lines = [read_line(line.encode()) for line in last]
    assert before.goes_on(lines, 5000) is expected
    assert not before.goes_on(lines, 110)  # these stand above the traceback


def test_the_lines_of_the_traceback_s_rank_are_compared() -> None:
    before = Before()
    lines = [f"[rank1]: {line}".encode() for line in FOLDS]
    before.keep(b"\n".join(lines), 0, "[rank1]:")
    assert before.goes_on([*map(read_line, lines)], 9000)
