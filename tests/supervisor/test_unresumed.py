"""An attempt that begins anew although it was given a checkpoint is told of, and nothing that only looks like it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from attempts import Make

from prefect_ft.clock import PhaseClock
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import AttemptLine, CheckpointLine, Line, WarningLine, read_line
from prefect_ft.journal.summary import summarise
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.unresumed import Unresumed
from prefect_ft.supervisor.warner import Warner

UTC = "2026-01-02T03:04:05.678Z"


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    """Nothing is started by most of these."""


def attempt(t: float, number: int, resume_step: int | None = None) -> Line:
    return AttemptLine(t=t, utc=UTC, attempt=number, resume_step=resume_step, placement=("s0",))


def saved(number: int, step: int, written_t: float, name: str = "{}", **fields: Any) -> CheckpointLine:
    path = f"/ck/{name.format(step)}"
    return CheckpointLine(
        t=written_t, utc=UTC, attempt=number, step=step, written_t=written_t, path=path, **fields
    )


def incident(t: float, **fields: Any) -> Line:
    return read_line({"type": "incident", "t": t, "utc": UTC, "n": 1, "ended_t": t, "kind": "exit", **fields})


FIRST = [attempt(0, 1), saved(1, 100, 5), saved(1, 200, 10), incident(12, last_step=230)]
SECOND = [*FIRST, attempt(20, 2, 200)]


def warnings(
    lines: Sequence[Line], *, later: Sequence[CheckpointLine] = (), told: Sequence[int] = ()
) -> list[str]:
    """Return what is warned of when these checkpoints come, and these steps are told, in the last attempt."""
    journal = MemoryJournal(lines)
    unresumed = Unresumed(Warner("train", journal, PhaseClock()), journal)
    for line in later:
        journal.append(line, t=line.t)
        unresumed.saved(line)
    number = max(line.attempt for line in lines if isinstance(line, AttemptLine))
    running = Attempt(number, {0: 0})
    for step in told:
        running.first_step = step if running.first_step is None else running.first_step
        running.last_step = max(step, running.last_step or 0)
        unresumed.told(running)
    return [line.text for line in journal.lines if isinstance(line, WarningLine)]


@pytest.mark.parametrize(
    ("later", "told", "shows"),
    [
        pytest.param([saved(2, 100, 30)], [], "has saved step 100 since", id="saved"),
        pytest.param(
            [saved(2, 100, 30), saved(2, 150, 40)], [], "has saved step 100 since", id="saved-twice"
        ),
        pytest.param([saved(2, 220, 19), saved(2, 100, 30)], [], "has saved step 100 since", id="seen-late"),
        pytest.param([], [0, 1, 2], "is at step 1 now", id="told"),
    ],
)
def test_an_attempt_that_begins_anew_is_warned_of_once(
    later: list[CheckpointLine], told: list[int], shows: str
) -> None:
    (text,) = warnings(SECOND, later=later, told=told)
    assert text.startswith(f"attempt 2 was given step 200 and {shows}: it seems to have begun anew")
    assert "PREFECT_FT_RESUME_FROM" in text


@pytest.mark.parametrize(
    ("lines", "later", "told"),
    [
        pytest.param(SECOND, [saved(2, 200, 30), saved(2, 300, 40)], [], id="saved-again-and-on"),
        pytest.param(SECOND, [saved(2, 150, 15)], [], id="written-before-it"),
        pytest.param(SECOND, [saved(2, 300, 30), saved(2, 100, 40)], [], id="counted-in-each-epoch"),
        pytest.param(SECOND, [saved(2, 0, 30)], [], id="its-first-weights"),
        pytest.param(SECOND, [saved(2, 100, 30, name="best_{}.pt")], [], id="the-best-one-at-its-end"),
        pytest.param(SECOND, [saved(2, 1, 30, counted=True)], [], id="versions"),
        pytest.param([*FIRST, attempt(20, 2)], [saved(2, 100, 30)], [1, 2], id="from-scratch"),
        pytest.param([attempt(0, 1, 200)], [saved(1, 100, 30)], [1, 2], id="of-an-earlier-phase"),
        pytest.param(
            [
                attempt(0, 1),
                saved(1, 200, 3),
                saved(1, 100, 5),
                saved(1, 200, 9),
                incident(12),
                attempt(20, 2, 200),
            ],
            [saved(2, 50, 30)],
            [],
            id="fell-before",
        ),
        pytest.param(SECOND, [], [0, 200, 201], id="told-before-loading"),
        pytest.param(SECOND, [], [0], id="told-once"),
        pytest.param(
            [attempt(0, 1), saved(1, 12800, 5), incident(9, last_step=100), attempt(20, 2, 12800)],
            [],
            [100, 101],
            id="another-count",
        ),
        pytest.param(
            [
                attempt(0, 1),
                *(saved(1, epoch, epoch) for epoch in range(1, 6)),
                incident(9, last_step=999),
                attempt(20, 2, 5),
            ],
            [],
            [0, 1, 2],
            id="batches-of-each-epoch",
        ),
    ],
)
def test_what_only_looks_like_it_is_not(
    lines: list[Line], later: list[CheckpointLine], told: list[int]
) -> None:
    assert warnings(lines, later=later, told=told) == []


def test_what_was_there_before_the_first_attempt_costs_no_search() -> None:
    journal = MemoryJournal([])
    unresumed = Unresumed(Warner("train", journal, PhaseClock()), journal)
    for step in range(5000):
        journal.append(saved(0, step, -5.0), t=0.1)
    began = time.process_time()
    for line in journal.lines:
        assert isinstance(line, CheckpointLine)
        unresumed.saved(line)
    assert time.process_time() - began < 0.5  # it took seconds, and four times as many for twice as many


def test_a_script_that_never_resumes_is_told_of_and_its_first_work_does_not_count(make: Make) -> None:
    code = """
def wait_for(text):
    while text not in open("journal.jsonl").read(): time.sleep(0.005)
save(5)
wait_for('"step":5,"path"')
if restarts: wait_for("not-resumed"); sys.exit()
save(10)
wait_for('"step":10,"path"')
os.abort()
"""
    phase = make(code)
    assert phase.run() == ["transient: restart_in_place", "completed: complete"]
    assert phase.resumed_from() == ["", "step-10.npz"]
    first, second = summarise(phase.journal.lines).attempts
    assert (second.resume_step, second.unloaded_step) == (None, 10)
    spent_s = summarise(phase.journal.lines).time_s
    assert spent_s["recompute"] == pytest.approx(first.end - first.start, abs=0.01)
