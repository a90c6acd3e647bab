"""What a log said further up still counts, and what was never finished does not stand in the way."""

from __future__ import annotations

import pytest

from prefect_ft.decide.classify import builtin_catalogue, classify
from prefect_ft.decide.classify.likeness import signature_of
from prefect_ft.decide.classify.repeats import Repeats

HEAD = "Traceback (most recent call last):"
ENDING = [HEAD, '  File "/app/main.py", line 7, in <module>', "    run()", "AssertionError: x"]


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([HEAD, *(f"words of {letter}" for letter in "abcdefgh" * 300)], id="in-one-rank"),
        pytest.param([f"[rank{rank}]: {HEAD}" for rank in range(3000)], id="in-very-many"),
    ],
)
def test_a_traceback_that_never_ends_is_given_up(before):
    verdict = classify({"a": [*before, *ENDING]}, exit_code=1)
    assert (verdict.failure_class, verdict.evidence.line) == ("assertion", len(before) + len(ENDING))


def test_that_a_run_got_over_something_long_ago_is_progress():
    caught, rest = "Broken pipe on fd 7", ["words"] * 3000
    steps = [f"step {number}" for number in range(9)]
    assert classify({"a": [caught, *steps, *rest]}, signal=15).failure_class == "preempted"
    assert classify({"a": [caught, *rest]}, signal=15).failure_class == "unknown"


@pytest.mark.parametrize(
    ("above", "failure_class"),
    [
        pytest.param(["Exception ignored in: <f>"], "unknown", id="right-above"),
        pytest.param(["Exception ignored in: <f>", "words"], "assertion", id="two-lines-above"),
    ],
)
def test_only_the_line_above_says_that_a_traceback_is_not_fatal(above, failure_class):
    assert classify({"a": ["start", *above, *ENDING]}, exit_code=1).failure_class == failure_class


def test_text_that_is_no_text_has_a_signature():
    assert signature_of("\udcff") == signature_of("?")


def test_a_line_that_is_no_utf_8_is_known_by_its_form():
    known = Repeats(builtin_catalogue())
    for number in range(10):
        known.note(b"\xff shard %d skipped" % number, "")
    assert known.rule_of(b"\xff shard 77 skipped") == ""
