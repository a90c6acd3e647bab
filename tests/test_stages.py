"""Where the time of a restart went, stage by stage, from a journal."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_ft.journal.records import read_line
from prefect_ft.journal.stages import stages_by_attempt

REST = {
    "attempt": {"placement": ["s0"]},
    "incident": {"kind": "exit"},
    "decision": {
        "rule": "r",
        "reason": "r",
        "isolate": [],
        "recreate": [],
        "placement": {"0": "s0"},
        "counters": {},
    },
}
"""What else lines of these types have."""

FIRST = {"type": "attempt", "t": 1.0, "attempt": 1, "begun_t": 0.5}
EXIT = {"type": "incident", "t": 5.002, "n": 1, "ended_t": 5.0, "reaped_t": 5.006}
DECIDED = {"type": "decision", "t": 5.007, "n": 1, "action": "restart_in_place", "delay_s": 0}
SECOND = {"type": "attempt", "t": 5.02, "attempt": 2, "begun_t": 5.009}
PRINTED = {"type": "came-up", "t": 5.1, "attempt": 2, "what": "first-line", "at_t": 5.03}
MET = {"type": "came-up", "t": 5.1, "attempt": 2, "what": "rendezvous", "at_t": 5.05}
STEPPED = {"type": "came-up", "t": 9.1, "attempt": 2, "what": "first-step", "at_t": 9.05}
STARTED = {"detect": 0.002, "reap": 0.004, "decide": 0.001, "retry": 0.002, "wait": 0, "start": 0.011}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([FIRST], {}, id="nothing-failed"),
        pytest.param([FIRST, EXIT, DECIDED], {}, id="nothing-is-started-yet"),
        pytest.param([FIRST, EXIT, DECIDED, SECOND], {2: STARTED}, id="started"),
        pytest.param(
            [FIRST, EXIT, DECIDED, SECOND, PRINTED, MET],
            {2: {**STARTED, "first_line": 0.01, "rendezvous": 0.02}},
            id="up",
        ),
        pytest.param(
            [FIRST, EXIT, DECIDED, SECOND, PRINTED, MET, STEPPED],
            {2: {**STARTED, "first_line": 0.01, "rendezvous": 0.02, "first_step": 4.0}},
            id="training",
        ),
        pytest.param(
            [FIRST, EXIT, DECIDED, SECOND, MET, STEPPED, {**PRINTED, "at_t": 9.3}],
            {2: {**STARTED, "rendezvous": 0.03, "first_step": 4.0}},
            id="training-before-anybody-printed",
        ),
        pytest.param(
            [FIRST, EXIT, DECIDED, SECOND, MET, PRINTED],
            {2: {**STARTED, "rendezvous": 0.03, "first_line": 0.0}},
            id="met-before-anybody-printed",
        ),
        pytest.param(
            [FIRST, EXIT, {**DECIDED, "delay_s": 2}, {**SECOND, "t": 7.5}],
            {2: {**STARTED, "wait": 2, "start": 0.491}},
            id="after-a-pause",
        ),
        pytest.param([FIRST, EXIT, {**DECIDED, "action": "fail"}], {}, id="given-up"),
        pytest.param([FIRST, EXIT, {**DECIDED, "action": "continue"}, SECOND], {}, id="only-reported"),
        pytest.param(
            [
                FIRST, EXIT, DECIDED,
                {"type": "incident", "t": 5.5, "n": 2, "ended_t": 5.5},
                {**DECIDED, "t": 5.6, "n": 2}, {**SECOND, "t": 6.0},
            ],
            {2: {**STARTED, "decide": 0.594, "retry": 0.0, "start": 0.991}},
            id="a-recovery-that-failed-is-part-of-it",
        ),
        pytest.param(
            [FIRST, {**EXIT, "reaped_t": None}, DECIDED, {**SECOND, "begun_t": None}],
            {2: {**STARTED, "reap": 0.0, "decide": 0.005, "retry": 0.0, "start": 0.013}},
            id="a-journal-of-an-earlier-version",
        ),
    ],
)  # fmt: skip
def test_stages(lines: list[dict[str, Any]], expected: dict[int, dict[str, float]]) -> None:
    told = [{"utc": "2026-01-02T03:04:05Z", **REST.get(line["type"], {}), **line} for line in lines]
    assert stages_by_attempt([read_line(line) for line in told]) == expected
