"""The table of orders and events is what the agent checks by, and what the documentation says."""

from __future__ import annotations

import re

import pytest
from protocol_page import PAGE, documented

from prefect_ft.worker import frames, protocol
from prefect_ft.worker.protocol import ORDERS, RefusedError, checked


def test_the_page_says_what_the_table_of_orders_says() -> None:
    assert documented("Orders") == {
        name: {field: form.name for field, form in fields.items()} for name, fields in ORDERS.items()
    }


def test_the_page_is_about_this_version() -> None:
    assert PAGE.read_text().startswith(f"# The agent protocol, version {frames.VERSION}\n")


STOP = {"op": "stop", "token": [1, 0, 1], "grace_s": 1.5, "complete": True}


def test_a_whole_order_passes_and_unknown_fields_are_passed_over() -> None:
    assert checked(STOP) == checked({**STOP, "new": "field"}) == "stop"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        pytest.param({}, "no such order: None", id="no-name"),
        pytest.param(
            {"op": "halt"},
            "no such order: 'halt'; there are: attach, choose, start, checkpoint, watch, diagnose, stop, leave",
            id="unknown",
        ),
        pytest.param({"op": {}}, "no such order", id="a-name-that-is-none"),
        pytest.param({"op": "leave"}, "leave: token is missing", id="missing-field"),
        pytest.param({**STOP, "token": (1, 0, 1)}, "token must be [epoch, phase, attempt]", id="wrong-type"),
        pytest.param({**STOP, "complete": 1}, "complete must be bool", id="a-number-is-no-bool"),
        pytest.param({**STOP, "token": [1, 0, True]}, "token must be", id="a-bool-is-no-number"),
        pytest.param({**STOP, "grace_s": float("inf")}, "grace_s must be seconds", id="infinite"),
        pytest.param({**STOP, "grace_s": float("nan")}, "grace_s must be seconds", id="no-number"),
        pytest.param({**STOP, "grace_s": -0.1}, "grace_s must be seconds", id="negative"),
    ],
)
def test_what_is_no_order_is_refused_with_the_reason(message: dict, why: str) -> None:
    with pytest.raises(RefusedError, match=re.escape(why)):
        checked(message)


@pytest.mark.parametrize(
    ("value", "holds"),
    [
        ({"0": 5}, True),
        ({}, True),
        ({"-1": 5}, False),
        ({"¹": 5}, False),
        ({"9" * 10: 5}, False),
        ({"0": "5"}, False),
    ],
)
def test_a_rank_is_decimal_digits(value: dict, holds: bool) -> None:
    assert protocol.OFFSETS.holds(value) is holds
