"""Time-outs are seconds or timedelta, above 0, and a rank is interrupted before it is killed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from prefect_ft.inprocess import Wrapper
from prefect_ft.inprocess.limits import Limits, limits

GIVEN: dict[str, Any] = {"soft": 60, "hard": 90, "heartbeat": 30, "barrier": 120, "completion": 120}


def test_seconds_and_timedelta_are_the_same() -> None:
    spans = {name: timedelta(seconds=value) for name, value in GIVEN.items()}
    assert limits(**GIVEN) == limits(**spans) == Limits(60.0, 90.0, 30.0, 120.0, 120.0)


def test_soft_and_hard_may_be_left_out() -> None:
    assert limits(**{**GIVEN, "soft": None, "hard": None}) == Limits(None, None, 30.0, 120.0, 120.0)
    assert limits(**{**GIVEN, "soft": None}).hard_s == 90.0


@pytest.mark.parametrize(
    ("given", "why"),
    [
        pytest.param({"soft_timeout": 0}, "soft_timeout must be above 0 s", id="zero"),
        pytest.param({"barrier_timeout": timedelta(seconds=-1)}, "barrier_timeout", id="below-zero"),
        pytest.param({"heartbeat_timeout": float("inf")}, "heartbeat_timeout", id="endless"),
        pytest.param({"completion_timeout": float("nan")}, "completion_timeout", id="no-number"),
        pytest.param({"soft_timeout": 90, "hard_timeout": 90}, "must be above soft_timeout", id="hard-first"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_written(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Wrapper(**given)
