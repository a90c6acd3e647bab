"""Who runs next and as which rank: tables."""

from __future__ import annotations

import pytest

from prefect_ft.inprocess.rank_assignment import (
    Assignment,
    Member,
    compose,
    divisible_by,
    fill_gaps,
    max_active,
    shift_ranks,
    whole_groups,
)

LOST_1 = [Member(0, 0), Member(2, 2), Member(3, 3)]
LOST_1_SPARE = [*LOST_1, Member(4, None)]


@pytest.mark.parametrize(
    ("assignment", "members", "initial_ranks"),
    [
        pytest.param(shift_ranks, LOST_1, [0, 2, 3], id="shift"),
        pytest.param(shift_ranks, [Member(0, None), *LOST_1[1:]], [2, 3, 0], id="shift-the-reserve-follows"),
        pytest.param(shift_ranks, [Member(0, 1), Member(5, 0)], [5, 0], id="shift-by-the-last-ranks"),
        pytest.param(fill_gaps, LOST_1, [0, 3, 2], id="fill-with-the-highest"),
        pytest.param(fill_gaps, LOST_1_SPARE, [0, 4, 2, 3], id="fill-with-the-reserve"),
        pytest.param(fill_gaps, [Member(3, 3), Member(2, 2)], [2, 3], id="fill-all"),
        pytest.param(whole_groups(2), LOST_1, [2, 3], id="whole-groups"),
        pytest.param(divisible_by(2), LOST_1, [0, 2], id="divisible"),
        pytest.param(divisible_by(4), LOST_1, [], id="none-is-divisible"),
        pytest.param(max_active(2), LOST_1, [0, 2], id="max-active"),
        pytest.param(
            compose(fill_gaps, max_active(3)), LOST_1_SPARE, [0, 4, 2], id="the-spare-takes-the-place"
        ),
        pytest.param(compose(whole_groups(2), shift_ranks, max_active(1)), LOST_1, [2], id="in-their-order"),
    ],
)
def test_assignments(assignment: Assignment, members: list[Member], initial_ranks: list[int]) -> None:
    assert [member.initial_rank for member in assignment(members)] == initial_ranks
