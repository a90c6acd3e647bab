"""Counts in texts, and the texts that have to stand without the count that they usually have: one of a thing."""

from __future__ import annotations

import pytest

from prefect_ft.amounts import count
from prefect_ft.report.timeline import not_shown
from prefect_ft.supervisor import SavesPlan
from prefect_ft.supervisor.unsaved import _text as unrecognised


@pytest.mark.parametrize(
    ("number", "nouns", "expected"),
    [
        pytest.param(0, ("rank",), "0 ranks", id="none"),
        pytest.param(1, ("rank",), "1 rank", id="one"),
        pytest.param(2048, ("rank",), "2,048 ranks", id="thousands"),
        pytest.param(1, ("process", "processes"), "1 process", id="one-of-an-irregular-noun"),
        pytest.param(2, ("process", "processes"), "2 processes", id="an-irregular-plural"),
    ],
)
def test_a_noun_agrees_with_its_number(number: int, nouns: tuple[str, ...], expected: str) -> None:
    assert count(number, *nouns) == expected


@pytest.mark.parametrize(
    ("hidden", "expected"), [(1, "1 more system is not shown"), (2, "2 more systems are not shown")]
)
def test_lanes_that_are_hidden_are_counted(hidden: int, expected: str) -> None:
    assert not_shown(hidden) == expected


def test_a_single_entry_that_does_not_count_is_warned_of_in_the_singular() -> None:
    said = unrecognised(SavesPlan(directory="saves"), {"best.bin": "no step in its name"})
    assert said.startswith(
        "1 entry of saves looks like a checkpoint and does not count (best.bin: no step in "
    )
