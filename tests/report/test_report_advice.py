"""The advice on the interval between checkpoints: Daly's formula, on what the journals know."""

from __future__ import annotations

import math
from typing import Any

import pytest
from past_runs import came_through

from prefect_ft.journal.attempts import timeline_of
from prefect_ft.journal.records import CheckpointLine
from prefect_ft.report.advice import Advice, advise, best_interval_s
from prefect_ft.report.words import advice_lines


def advice(**fields: Any) -> Advice:
    known = {"failures": 10, "worked_s": 36000.0, "interval_s": 600.0, "cost_s": 10.0, "cost_from": 7}
    return Advice(**{**known, **fields})


def loss(interval_s: float, cost_s: float, between_s: float) -> float:
    """The expected time per second of work, by Daly's complete model without the time to restart."""
    return between_s * math.expm1((interval_s + cost_s) / between_s) / interval_s


@pytest.mark.parametrize("cost_s", [1.0, 30.0, 300.0])
@pytest.mark.parametrize("between_s", [3600.0, 86400.0])
def test_no_other_interval_costs_noticeably_less(cost_s: float, between_s: float) -> None:
    """Against the complete model, whose optimum the formula estimates."""
    best = best_interval_s(cost_s, between_s)
    least = min(loss(best * factor / 100, cost_s, between_s) for factor in range(20, 500))
    assert loss(best, cost_s, between_s) / least < 1.0005


@pytest.mark.parametrize(("cost_s", "best_s"), [(7200.0, 3600.0), (9000.0, 3600.0)])
def test_where_saving_takes_longer_than_two_failures_are_apart(cost_s: float, best_s: float) -> None:
    assert best_interval_s(cost_s, 3600.0) == best_s


def test_what_a_journal_knows() -> None:
    lines = came_through().lines
    assert advise([(lines, timeline_of(lines, float(lines[-1].t)))]) == Advice(
        failures=2, worked_s=pytest.approx(19859.0), interval_s=900.0, cost_s=12.25, cost_from=4
    )


def test_a_file_that_is_overwritten_beside_steps_is_no_save_of_its_own() -> None:
    lines = []
    for line in came_through().lines:
        lines.append(line)
        if isinstance(line, CheckpointLine):
            lines.append(line.but(step=line.step + 1, counted=True, written_t=line.written_t + 0.005))
    assert advise([(lines, timeline_of(lines, float(lines[-1].t)))]).interval_s == 900.0


@pytest.mark.parametrize(
    ("known", "said"),
    [
        pytest.param(advice(failures=0), ["Nothing failed"], id="no-failure"),
        pytest.param(
            advice(),
            ["one every 1 h", "every 10 min", "A checkpoint took 10 s", "The best interval is 4 min 2"],
            id="all",
        ),
        pytest.param(advice(failures=2), ["a rough estimate"], id="few"),
        pytest.param(advice(cost_s=None), ["the best one if it is 56 s"], id="cost-unknown"),
        pytest.param(advice(interval_s=None, cost_s=None), ["the interval is unknown"], id="nothing-known"),
    ],
)
def test_the_advice_says_what_it_rests_on(known: Advice, said: list[str]) -> None:
    text = " ".join(advice_lines(known))
    assert [each for each in said if each not in text] == []
