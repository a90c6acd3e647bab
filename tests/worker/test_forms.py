"""Forms of values: what is of them, on the worker's side and on this one."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_ft.worker.forms import NUMBER, SECONDS


@pytest.mark.parametrize(
    ("value", "is_number", "is_seconds"),
    [
        pytest.param(0, True, True, id="none"),
        pytest.param(-1.5, True, False, id="below-0"),
        pytest.param(10**300, True, True, id="large"),
        pytest.param(10**400, False, False, id="too-large-for-a-float"),
        pytest.param(-(10**400), False, False, id="too-small-for-a-float"),
        pytest.param(float("inf"), False, False, id="infinite"),
        pytest.param(float("nan"), False, False, id="no-number"),
        pytest.param(True, False, False, id="a-bool"),
        pytest.param("1", False, False, id="a-text"),
    ],
)
def test_numbers_and_seconds(value: Any, is_number: bool, is_seconds: bool) -> None:
    assert (NUMBER.holds(value), SECONDS.holds(value)) == (is_number, is_seconds)
