"""What a line costs grows with its length, whatever stands in it: the supervisor has one thread."""

from __future__ import annotations

import time

import pytest

from prefect_ft.decide.classify import classify
from prefect_ft.decide.classify.tracebacks import HEADER

LONG = 3_900
"""Characters: just below where the classifier cuts a line."""

TIMES = 16
GROWTH = 3 * TIMES
"""A line TIMES as long may cost so many times as much; one whose cost is a square takes TIMES squared."""

REPEATED = [
    *" \t\u00a00aA.:/[]|+-=#()'\"",
    *("| ", "a.", "1 ", "1.", "0x0", "a: ", "a/", "[1", "pid=1 ", "rank 1 ", "E   ", "│ /", 'File "', "1/1 ["),
    *("ERROR ", "[ ", "I 1 ", "- ", "12:00:00 ", "\x1b[0m", "\x1b]", "step 1 ", "Error: ", "a b: ", "%|"),
]  # fmt: skip


def cost_s(piece: str, length: int) -> float:
    """Return the processor time of lines that are a piece again and again, in a traceback and outside one."""
    line = (piece * (length // len(piece) + 1))[:length]
    some = [line + end for end in ("!", "x", " 1", ":", "]!")]
    lines = [*some, HEADER, '  File "a.py", line 1, in f', *some, "ValueError: x"]
    return min(_timed(lines) for _ in range(3))


def _timed(lines: list[str]) -> float:
    began_s = time.thread_time()
    classify({"rank0.log": lines}, exit_code=1)
    return time.thread_time() - began_s


@pytest.mark.parametrize("piece", REPEATED, ids=repr)
def test_a_line_costs_no_more_than_its_length(piece: str) -> None:
    cost_s(piece, 100)
    assert cost_s(piece, LONG) <= GROWTH * cost_s(piece, LONG // TIMES)
