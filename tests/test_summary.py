"""What a phase cost: whole summaries of small journals written by hand, and what holds for all journals."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_ft.journal.attempts import PARTS, AttemptSummary
from prefect_ft.journal.records import (
    AttemptLine,
    CheckpointLine,
    ComebackLine,
    EndLine,
    Line,
    PhaseLine,
    WarningLine,
    read_line,
)
from prefect_ft.journal.summary import PhaseSummary, summarise
from prefect_ft.model import RESTARTS

UTC = "2026-01-02T03:04:05.678Z"
PHASE = PhaseLine(t=0, utc=UTC, run="r1", job="j", phase="train")


def attempt(t: float, number: int, resume_step: int | None = None) -> Line:
    return AttemptLine(t=t, utc=UTC, attempt=number, resume_step=resume_step, placement=("s0", "s1"))


def checkpoint(step: int, written_t: float, t: float | None = None) -> Line:
    return CheckpointLine(t=written_t if t is None else t, utc=UTC, step=step, written_t=written_t)


def incident(t: float, n: int, kind: str = "exit", ended_t: float | None = None, **fields: Any) -> Line:
    happened_t = t if ended_t is None else ended_t
    told = {"type": "incident", "t": t, "utc": UTC, "n": n, "ended_t": happened_t, "kind": kind}
    return read_line({**told, **fields})


def decision(t: float, n: int, rule: str, action: str, **fields: Any) -> Line:
    return read_line({
        "type": "decision", "t": t, "utc": UTC, "n": n, "rule": rule, "action": action, "reason": f"why {n}",
        "isolate": [], "recreate": [], "placement": {"0": "s0", "1": "s1"}, "delay_s": 0, "counters": {}, **fields,
    })  # fmt: skip


def end(t: float, status: str, reason: str = "why") -> Line:
    return EndLine(t=t, utc=UTC, status=status, reason=reason)


def times(total: float, **parts: float) -> dict[str, float]:
    return {"total": total, **dict.fromkeys(PARTS, 0.0), **parts}


def summary(
    status: str, attempts: list[AttemptSummary], time_s: dict[str, float], **fields: Any
) -> PhaseSummary:
    known: dict[str, Any] = {
        "phase": "train", "run": "r1", "job": "j", "reason": "" if status == "running" else "why",
        "restarts": {}, "effective_ratio": 0.0, "isolated_systems": (), "final_step": None,
    }  # fmt: skip
    return PhaseSummary(**{**known, **fields}, status=status, attempts=tuple(attempts), time_s=time_s)


def crashed(number: int, start: float, end: float, n: int, action: str, **fields: Any) -> AttemptSummary:
    known: dict[str, Any] = {"outcome": "exit", "rule": "transient", "reason": f"why {n}", "action": action}
    return AttemptSummary(number=number, start=start, end=end, **{**known, **fields})


def completed(number: int, start: float, end: float, n: int, **fields: Any) -> AttemptSummary:
    known: dict[str, Any] = {
        "outcome": "completed",
        "rule": "completed",
        "action": "complete",
        "reason": f"why {n}",
    }
    return AttemptSummary(number=number, start=start, end=end, **{**known, **fields})


def comeback(t: float) -> Line:
    return ComebackLine(t=t, utc=UTC, epoch=2, by_hand=True, attempt=1, goes_on=True, adopted=(0,), left=())


def unresumed(t: float, number: int) -> Line:
    return WarningLine(t=t, utc=UTC, attempt=number, what="not-resumed", text=f"attempt {number} began anew")


CASES = {
    "empty": ([], summary("running", [], times(0), phase="", run="", job="", effective_ratio=None)),
    "just-begun": ([PHASE], summary("running", [], times(0), effective_ratio=None)),
    "a-device-healed": (
        [
            PHASE,
            attempt(2, 1),
            incident(
                12, 1, "device_fault", device="0", code="E1", severity="major", healed=True, healing_s=3.5
            ),
            decision(16, 1, "fault-healed", "restart_in_place"),
            attempt(17, 2),
        ],
        summary(
            "running",
            [
                crashed(1, 2, 12, 1, "restart_in_place", outcome="device_fault", rule="fault-healed"),
                AttemptSummary(number=2, start=17, end=None),
            ],
            times(17, start=2, recompute=10, heal=3.5, decide=0.5, recover=1),
            restarts={"restart_in_place": 1},
        ),
    ),
    "began-anew-and-got-further": (
        [
            PHASE,
            attempt(0, 1),
            checkpoint(50, 9),
            incident(10, 1, last_step=50),
            decision(10, 1, "transient", "restart_in_place"),
            attempt(10, 2, 50),
            checkpoint(25, 15),
            unresumed(15, 2),
            checkpoint(75, 25),
            incident(26, 2, "completed", last_step=80),
            decision(26, 2, "completed", "complete"),
            end(26, "completed"),
        ],
        summary(
            "completed",
            [
                crashed(1, 0, 10, 1, "restart_in_place", last_step=50, steps_lost=50),
                completed(2, 10, 26, 2, unloaded_step=50, last_step=80),
            ],
            times(26, recompute=10, productive=16),
            restarts={"restart_in_place": 1},
            effective_ratio=round(16 / 26, 4),
            final_step=80,
            warnings=("attempt 2 began anew",),
        ),
    ),
    "began-anew-twice-in-vain": (
        [
            PHASE,
            attempt(0, 1),
            checkpoint(50, 9),
            incident(10, 1, last_step=50),
            decision(10, 1, "transient", "restart_in_place"),
            attempt(10, 2, 50),
            checkpoint(25, 15),
            unresumed(15, 2),
            incident(16, 2, last_step=30),
            decision(16, 2, "transient", "restart_in_place"),
            attempt(16, 3, 50),
            checkpoint(25, 20),
            unresumed(20, 3),
            incident(21, 3, last_step=30),
            decision(21, 3, "transient", "restart_in_place"),
            attempt(21, 4, 50),
            incident(26, 4, "completed", last_step=80),
            decision(26, 4, "completed", "complete"),
            end(26, "completed"),
        ],
        summary(
            "completed",
            [
                crashed(1, 0, 10, 1, "restart_in_place", last_step=50, steps_lost=50),
                crashed(2, 10, 16, 2, "restart_in_place", unloaded_step=50, last_step=30, steps_lost=30),
                crashed(3, 16, 21, 3, "restart_in_place", unloaded_step=50, last_step=30, steps_lost=30),
                completed(4, 21, 26, 4, resume_step=50, last_step=80),
            ],
            times(26, productive=14, recompute=12),
            restarts={"restart_in_place": 3},
            effective_ratio=round(14 / 26, 4),
            final_step=80,
            warnings=("attempt 2 began anew",),
        ),
    ),
    "no-restart": (
        [
            PHASE,
            attempt(2, 1),
            checkpoint(50, 7),
            incident(12.5, 1, "completed", ended_t=12, first_step=1, last_step=100),
            decision(12.75, 1, "completed", "complete"),
            end(14, "completed"),
        ],
        summary(
            "completed",
            [completed(1, 2, 12, 1, first_step=1, last_step=100)],
            times(14, start=2, productive=10, detect=0.5, decide=0.25, stop=1.25),
            effective_ratio=round(10 / 14, 4),
            final_step=100,
        ),
    ),
    "completed-while-nobody-watched": (
        [
            PHASE,
            attempt(0, 1),
            comeback(29.5),
            incident(30, 1, "completed", ended_t=10),
            decision(30.25, 1, "completed", "complete"),
            end(30.5, "completed"),
        ],
        summary(
            "completed",
            [completed(1, 0, 10, 1)],
            times(30.5, productive=10, decide=0.25, stop=20.25),
            effective_ratio=round(10 / 30.5, 4),
        ),
    ),
    "completed-after-a-comeback": (
        [
            PHASE,
            attempt(0, 1),
            comeback(9),
            incident(30, 1, "completed", ended_t=29),
            decision(30, 1, "completed", "complete"),
            end(30, "completed"),
        ],
        summary(
            "completed",
            [completed(1, 0, 29, 1)],
            times(30, productive=29, detect=1),
            effective_ratio=round(29 / 30, 4),
        ),
    ),
    "failed-while-nobody-watched": (
        [
            PHASE,
            attempt(0, 1),
            comeback(29),
            incident(30, 1, ended_t=10),
            decision(30, 1, "transient", "fail"),
            end(30, "failed"),
        ],
        summary("failed", [crashed(1, 0, 10, 1, "fail")], times(30, recompute=10, detect=20)),
    ),
    "restart-in-place": (
        [
            PHASE,
            attempt(2, 1),
            checkpoint(50, 6, t=6.5),
            incident(
                12,
                1,
                ended_t=10,
                attempt=1,
                worker=1,
                signal=11,
                last_step=80,
                first_step=1,
                step=50,
                **{"class": "crash", "evidence": {"rule": "signal", "text": "ended by SIGSEGV"}},
            ),
            decision(13, 1, "transient", "restart_in_place", resume_step=50),
            attempt(15, 2, resume_step=50),
            incident(35, 2, "completed", attempt=2, last_step=100, first_step=51),
            decision(35, 2, "completed", "complete"),
            end(35, "completed"),
        ],
        summary(
            "completed",
            [
                crashed(
                    1,
                    2,
                    10,
                    1,
                    "restart_in_place",
                    failure_class="crash",
                    signal=11,
                    blamed="s1",
                    evidence="ended by SIGSEGV",
                    cause="signal",
                    first_step=1,
                    last_step=80,
                    steps_lost=30,
                ),
                completed(2, 15, 35, 2, resume_step=50, first_step=51, last_step=100),
            ],
            times(35, start=2, productive=24, recompute=4, detect=2, decide=1, recover=2),
            restarts={"restart_in_place": 1},
            effective_ratio=round(24 / 35, 4),
            final_step=100,
        ),
    ),
    "rebuild-after-a-backoff": (
        [
            PHASE,
            attempt(0, 1),
            incident(10, 1, attempt=1, exit_code=1, **{"class": "network", "blame": "peer", "worker": 0}),
            decision(10, 1, "transient", "rebuild", delay_s=8),
            attempt(21, 2),
            incident(31, 2, "completed"),
            decision(31, 2, "completed", "complete"),
            end(31, "completed"),
        ],
        summary(
            "completed",
            [
                crashed(1, 0, 10, 1, "rebuild", failure_class="network", blame="peer", exit_code=1),
                completed(2, 21, 31, 2),
            ],
            times(31, productive=10, recompute=10, wait=8, recover=3),
            restarts={"rebuild": 1},
            effective_ratio=round(10 / 31, 4),
        ),
    ),
    "older-checkpoint-throws-earlier-attempts-away": (
        [
            PHASE,
            attempt(0, 1),
            checkpoint(10, 4),
            checkpoint(20, 8),
            incident(9, 1, last_step=22),
            decision(9, 1, "transient", "restart_in_place", resume_step=20),
            attempt(9, 2, resume_step=20),
            checkpoint(30, 14),
            incident(15, 2, last_step=31),
            decision(15, 2, "numeric", "restart_in_place", resume_step=10),
            attempt(15, 3, resume_step=10),
            incident(45, 3, "completed", last_step=40),
            decision(45, 3, "completed", "complete"),
            end(45, "completed"),
        ],
        summary(
            "completed",
            [
                crashed(1, 0, 9, 1, "restart_in_place", last_step=22, steps_lost=2, blamed=None),
                crashed(
                    2,
                    9,
                    15,
                    2,
                    "restart_in_place",
                    rule="numeric",
                    resume_step=20,
                    last_step=31,
                    steps_lost=21,
                ),
                completed(3, 15, 45, 3, resume_step=10, last_step=40),
            ],
            times(45, productive=4 + 30, recompute=5 + 6),
            restarts={"restart_in_place": 2},
            effective_ratio=round(34 / 45, 4),
            final_step=40,
        ),
    ),
    "from-scratch": (
        [
            PHASE,
            attempt(0, 1),
            checkpoint(10, 5),
            incident(6, 1, last_step=12),
            decision(6, 1, "checkpoint-unreadable", "restart_in_place"),
            attempt(6, 2),
            incident(16, 2, "completed", last_step=20),
            decision(16, 2, "completed", "complete"),
            end(16, "completed"),
        ],
        summary(
            "completed",
            [
                crashed(
                    1, 0, 6, 1, "restart_in_place", rule="checkpoint-unreadable", last_step=12, steps_lost=12
                ),
                completed(2, 6, 16, 2, last_step=20),
            ],
            times(16, productive=10, recompute=6),
            restarts={"restart_in_place": 1},
            effective_ratio=0.625,
            final_step=20,
        ),
    ),
    "step-0-is-a-checkpoint": (
        [
            PHASE,
            attempt(0, 1),
            checkpoint(0, 4),
            incident(5, 1, last_step=0),
            decision(5, 1, "transient", "restart_in_place", resume_step=0),
            attempt(5, 2, resume_step=0),
            incident(7, 2, "completed", last_step=0),
            decision(7, 2, "completed", "complete"),
            end(7, "completed"),
        ],
        summary(
            "completed",
            [
                crashed(1, 0, 5, 1, "restart_in_place", last_step=0, steps_lost=0),
                completed(2, 5, 7, 2, resume_step=0, last_step=0),
            ],
            times(7, productive=6, recompute=1),
            restarts={"restart_in_place": 1},
            effective_ratio=round(6 / 7, 4),
            final_step=0,
        ),
    ),
    "failed": (
        [
            PHASE,
            attempt(0, 1),
            checkpoint(10, 4),
            incident(
                6, 1, attempt=1, step=10, last_step=15, system="s9", blame="node", **{"class": "assertion"}
            ),
            decision(6, 1, "non-recoverable", "fail"),
            end(8, "failed"),
        ],
        summary(
            "failed",
            [
                crashed(
                    1,
                    0,
                    6,
                    1,
                    "fail",
                    rule="non-recoverable",
                    failure_class="assertion",
                    blame="node",
                    blamed="s9",
                    last_step=15,
                    steps_lost=5,
                )
            ],
            times(8, productive=4, recompute=2, stop=2),
            effective_ratio=0.5,
            final_step=15,
        ),
    ),
    "cancelled": (
        [
            PHASE,
            attempt(0, 1),
            incident(6, 1, "cancelled", attempt=1, last_step=3),
            decision(7, 1, "cancelled", "cancel"),
            end(8, "cancelled"),
        ],
        summary(
            "cancelled",
            [crashed(1, 0, 6, 1, "cancel", outcome="cancelled", rule="cancelled", last_step=3, steps_lost=3)],
            times(8, recompute=6, decide=1, stop=1),
            final_step=3,
        ),
    ),
    "cancelled-while-it-waits": (
        [
            PHASE,
            attempt(0, 1),
            incident(6, 1, last_step=3),
            decision(6, 1, "transient", "rebuild", delay_s=60),
            incident(16, 2, "cancelled"),
            decision(17, 2, "cancelled", "cancel"),
            end(17, "cancelled"),
        ],
        summary(
            "cancelled",
            [crashed(1, 0, 6, 1, "rebuild", last_step=3, steps_lost=3)],
            times(17, recompute=6, wait=10, decide=1),
            restarts={"rebuild": 1},
            final_step=3,
        ),
    ),
    "failed-recovery": (
        [
            PHASE,
            attempt(0, 1),
            checkpoint(10, 4),
            incident(5, 1, attempt=1, last_step=10),
            decision(5, 1, "transient", "restart_in_place", delay_s=1, resume_step=10),
            incident(9, 2, "in_place_failed", attempt=2, worker=0),
            decision(10, 2, "in-place-failed", "rebuild", delay_s=2, resume_step=10),
            attempt(15, 3, resume_step=10),
            incident(20, 3, "completed", attempt=3, last_step=20),
            decision(20, 3, "completed", "complete"),
            end(20, "completed"),
        ],
        summary(
            "completed",
            [
                crashed(1, 0, 5, 1, "restart_in_place", last_step=10, steps_lost=0),
                completed(3, 15, 20, 3, resume_step=10, last_step=20),
            ],
            times(20, productive=9, recompute=1, wait=3, recover=6, decide=1),
            restarts={"restart_in_place": 1, "rebuild": 1},
            effective_ratio=0.45,
            final_step=20,
        ),
    ),
    "nothing-ever-ran": (
        [
            PHASE,
            incident(4, 1, "rebuild_failed", ended_t=3, worker=0),
            decision(5, 1, "rebuild-failed", "isolate_and_rebuild", isolate=["s0"]),
            incident(9, 2, "rebuild_failed", worker=0),
            decision(9, 2, "max-restarts", "fail", isolate=["s0", "s1"]),
            end(10, "failed"),
        ],
        summary(
            "failed",
            [],
            times(10, start=3, detect=1, decide=1, recover=4, stop=1),
            restarts={"isolate_and_rebuild": 1},
            isolated_systems=("s0", "s1"),
        ),
    ),
    "still-running": (
        [PHASE, attempt(1, 1), checkpoint(10, 4)],
        summary(
            "running",
            [AttemptSummary(number=1, start=1)],
            times(21, start=1, productive=20),
            effective_ratio=round(20 / 21, 4),
            final_step=10,
        ),
    ),
    "still-recovering": (
        [
            PHASE,
            attempt(0, 1),
            incident(10, 1, last_step=7),
            decision(11, 1, "transient", "rebuild", delay_s=4),
        ],
        summary(
            "running",
            [crashed(1, 0, 10, 1, "rebuild", last_step=7)],
            times(21, recompute=10, decide=1, wait=4, recover=6),
            restarts={"rebuild": 1},
            final_step=7,
        ),
    ),
    "not-yet-decided": (
        [PHASE, attempt(0, 1), incident(10, 1, last_step=7)],
        summary(
            "running", [AttemptSummary(number=1, start=0)], times(21, productive=21), effective_ratio=1.0
        ),
    ),
    "a-report-ends-nothing": (
        [
            PHASE,
            attempt(0, 1),
            incident(5, 1, "in_process", attempt=1, ended_t=4),
            decision(6, 1, "in-process", "continue"),
            incident(8, 2, "completed", attempt=1, last_step=20),
            decision(8, 2, "completed", "complete"),
            end(8, "completed"),
        ],
        summary(
            "completed",
            [completed(1, 0, 8, 2, last_step=20)],
            times(8, productive=8),
            effective_ratio=1.0,
            final_step=20,
        ),
    ),
    "ended-without-a-word": (
        [PHASE, attempt(0, 1), checkpoint(10, 4), end(6, "failed", "the agent refused")],
        summary(
            "failed",
            [AttemptSummary(number=1, start=0, end=6, outcome="failed", reason="the agent refused")],
            times(6, productive=4, recompute=2),
            reason="the agent refused",
            effective_ratio=round(4 / 6, 4),
            final_step=10,
        ),
    ),
    "what-an-earlier-run-saved-is-nobodys-work": (
        [
            PHASE,
            checkpoint(500, -3600, t=1),
            attempt(1, 1, resume_step=500),
            incident(3, 1, last_step=502),
            decision(3, 1, "transient", "rebuild", resume_step=500),
            checkpoint(500, -3600, t=4),
            attempt(5, 2, resume_step=500),
            checkpoint(510, 8),
            incident(9, 2, "completed", last_step=510),
            decision(9, 2, "completed", "complete"),
            end(9, "completed"),
        ],
        summary(
            "completed",
            [
                crashed(1, 1, 3, 1, "rebuild", resume_step=500, last_step=502, steps_lost=2),
                completed(2, 5, 9, 2, resume_step=500, last_step=510),
            ],
            times(9, start=1, recompute=2, recover=2, productive=4),
            restarts={"rebuild": 1},
            effective_ratio=round(4 / 9, 4),
            final_step=510,
        ),
    ),
    "a-lower-checkpoint-keeps-nothing": (
        [
            PHASE,
            attempt(0, 1, resume_step=20),
            checkpoint(10, 4),
            incident(5, 1),
            decision(5, 1, "transient", "restart_in_place", resume_step=20),
            attempt(5, 2, resume_step=20),
            incident(9, 2, "completed"),
            decision(9, 2, "completed", "complete"),
            end(9, "completed"),
        ],
        summary(
            "completed",
            [crashed(1, 0, 5, 1, "restart_in_place", resume_step=20), completed(2, 5, 9, 2, resume_step=20)],
            times(9, productive=4, recompute=5),
            restarts={"restart_in_place": 1},
            effective_ratio=round(4 / 9, 4),
            final_step=10,
        ),
    ),
    "a-checkpoint-seen-late-is-of-the-attempt-that-wrote-it": (
        [
            PHASE,
            attempt(0, 1),
            incident(10, 1, last_step=30),
            decision(10, 1, "transient", "restart_in_place", resume_step=None),
            attempt(10, 2),
            checkpoint(20, 9, t=12),
            incident(14, 2, last_step=10),
            decision(14, 2, "transient", "rebuild", resume_step=20),
            attempt(14, 3, resume_step=20),
            incident(20, 3, "completed", last_step=40),
            decision(20, 3, "completed", "complete"),
            end(20, "completed"),
        ],
        summary(
            "completed",
            [
                crashed(1, 0, 10, 1, "restart_in_place", last_step=30, steps_lost=30),
                crashed(2, 10, 14, 2, "rebuild", last_step=10, steps_lost=0),
                completed(3, 14, 20, 3, resume_step=20, last_step=40),
            ],
            times(20, productive=6, recompute=14),
            restarts={"restart_in_place": 1, "rebuild": 1},
            effective_ratio=0.3,
            final_step=40,
        ),
    ),
}


@pytest.mark.parametrize(("lines", "expected"), CASES.values(), ids=CASES.keys())
def test_a_phase_as_its_journal_tells_it(lines: list[Line], expected: PhaseSummary) -> None:
    now_t = expected.time_s["total"] if expected.status == "running" and lines else None
    found = summarise(lines, now_t)
    attempts = tuple(replace(attempt, stages_s={}) for attempt in found.attempts)  # test_stages.py has them
    assert replace(found, attempts=attempts) == expected


@pytest.mark.parametrize(("lines", "expected"), CASES.values(), ids=CASES.keys())
def test_the_parts_of_the_time_add_up(lines: list[Line], expected: PhaseSummary) -> None:
    assert sum(expected.time_s[part] for part in PARTS) == pytest.approx(expected.time_s["total"])


def test_the_document_calls_the_class_by_its_name() -> None:
    document = json.loads(json.dumps(summarise(CASES["restart-in-place"][0]).to_json()))
    assert document["restarts"] == {"restart_in_place": 1}
    assert [attempt["class"] for attempt in document["attempts"]] == ["crash", None]
    assert "failure_class" not in document["attempts"][0]


# -- what holds for all journals --------------------------------------------------------------------

gaps = st.floats(0, 100).map(lambda seconds: round(seconds, 6))
steps = st.none() | st.integers(0, 500)


@st.composite
def journals(draw: st.DrawFn) -> list[Line]:
    """Journals as a supervisor could have written them, with clocks that do not agree, cut anywhere."""
    lines, t, n = [PHASE], 0.0, 0
    for number in range(1, draw(st.integers(0, 5)) + 1):
        t += draw(gaps)
        if draw(st.booleans()):
            lines.append(attempt(t, number, draw(steps)))
        for step in draw(st.lists(st.integers(0, 500), max_size=4)):
            t += draw(gaps)
            lines.append(checkpoint(step, t - draw(gaps) + draw(gaps), t=t))
        t, n = t + draw(gaps), n + 1
        kind = draw(st.sampled_from(("exit", "completed", "cancelled", "in_place_failed", "in_process")))
        lines.append(incident(t, n, kind, ended_t=t - draw(gaps), step=draw(steps), last_step=draw(steps)))
        t += draw(gaps)
        action = draw(st.sampled_from((*sorted(RESTARTS), "continue", "fail", "complete")))
        lines.append(decision(t, n, "a-rule", action, delay_s=draw(gaps)))
    if draw(st.booleans()):
        lines.append(end(t + draw(gaps), draw(st.sampled_from(("completed", "failed", "cancelled")))))
    return lines[: draw(st.integers(0, len(lines)))]


@given(lines=journals(), later=st.none() | gaps)
def test_whatever_the_journal_the_parts_are_never_negative_and_add_up(
    lines: list[Line], later: float | None
) -> None:
    last_t = lines[-1].t if lines else 0.0
    told = summarise(lines, None if later is None else last_t + later)
    parts = [told.time_s[part] for part in PARTS]
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(told.time_s["total"], abs=0.001 * len(parts))
    assert told.effective_ratio is None or 0 <= told.effective_ratio <= 1
    assert all(attempt.steps_lost is None or attempt.steps_lost >= 0 for attempt in told.attempts)
    starts = [attempt.start for attempt in told.attempts] + [told.time_s["total"]]
    ends = [
        next_t if each.end is None else each.end
        for each, next_t in zip(told.attempts, starts[1:], strict=True)
    ]
    worked_s = sum(end - start for start, end in zip(starts, ends, strict=False))
    assert told.time_s["productive"] + told.time_s["recompute"] == pytest.approx(worked_s, abs=0.002)
    json.dumps(told.to_json(), allow_nan=False)


@pytest.mark.parametrize("what", ["unrecognised", "nothing-saved"])
@pytest.mark.parametrize("saved_t", [None, 2.0, 5.0], ids=["never", "before", "since"])
def test_a_warning_that_nothing_counts_ends_with_the_next_checkpoint(
    what: str, saved_t: float | None
) -> None:
    warning = WarningLine(t=3.0, utc=UTC, attempt=1, what=what, text="nothing counts")
    saved = [] if saved_t is None else [checkpoint(10, saved_t)]
    lines = sorted([PHASE, attempt(0, 1), warning, *saved], key=lambda line: line.t)
    assert summarise(lines).warnings == (() if saved_t == 5.0 else ("nothing counts",))
