"""How a phase stands for who comes back: journal and agents side by side, the higher token wins."""

from __future__ import annotations

from typing import Any

import pytest
from heard import heard

from prefect_ft.clock import PhaseClock
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import (
    AttemptLine,
    CheckpointLine,
    ComebackLine,
    DecisionLine,
    IncidentLine,
    Line,
)
from prefect_ft.model import Action, Counters, Decision, Incident
from prefect_ft.observe import Notice, observed_by
from prefect_ft.supervisor.attempt import Start
from prefect_ft.supervisor.comeback import Standing, comebacks_without_progress, standing
from prefect_ft.supervisor.events import AgentStanding
from prefect_ft.supervisor.recording import Comeback

PLACEMENT = ("s0", "s1")


def attempt(number: int) -> AttemptLine:
    return AttemptLine(attempt=number, placement=PLACEMENT, decisions=number - 1)


def incident(n: int) -> IncidentLine:
    return IncidentLine(n=n, ended_t=0, facts=Incident(t=0, kind="exit"))


def decision(n: int, action: Action = "restart_in_place") -> DecisionLine:
    decided = Decision(n=n, rule="r", action=action, reason="r", placement=PLACEMENT, counters=Counters())
    return DecisionLine(n=n, facts=decided)


def agent(
    number: int, worker: int, *, running: bool = True, exited: bool = False, phase: int = 0
) -> AgentStanding:
    """What an agent of one rank says that has started this attempt; 0: none."""
    return heard(
        "attached",
        token=[1, phase, number] if number else [0, -1, 0],
        running=[worker] if number and running else [],
        exits={str(worker): {"code": 0, "signal": None, "t_ns": 1}} if exited else {},
        note=attempt(number).fields_to_json() if number else None,
    )


def stands(lines: list[Line], *agents: AgentStanding | None) -> Standing:
    known = {worker: told for worker, told in enumerate(agents) if told is not None}
    return standing(lines, known, phase_index=0, ranks_per_worker=1)


CASES = {
    "nothing-begun": ([], (agent(0, 0), agent(0, 1)), Standing(0)),
    "nobody-there": ([], (), Standing(0)),
    "runs": ([attempt(1)], (agent(1, 0), agent(1, 1)), Standing(1, PLACEMENT)),
    "is-over-by-itself": (
        [attempt(1)],
        (agent(1, 0, running=False, exited=True), agent(1, 1, running=False, exited=True)),
        Standing(1, PLACEMENT),
    ),
    "it-resumed": (
        [attempt(1).but(resume_path="/ckpts/step-4")],
        (agent(1, 0), agent(1, 1)),
        Standing(1, PLACEMENT, start=Start(None, "/ckpts/step-4")),
    ),
    "a-worker-is-gone": ([attempt(1)], (agent(1, 0), None), Standing(1, PLACEMENT, (1,))),
    "all-are-gone": ([attempt(1)], (), Standing(1, PLACEMENT, (0, 1))),
    "a-worker-was-made-anew": ([attempt(1)], (agent(0, 0), agent(1, 1)), Standing(1, PLACEMENT, (0,))),
    "ended-and-decided": ([attempt(1), incident(1), decision(1)], (agent(1, 0), agent(1, 1)), Standing(1)),
    "only-reported": (
        [attempt(1), incident(1), decision(1, "continue")], (agent(1, 0), agent(1, 1)), Standing(1, PLACEMENT),
    ),
    "one-of-an-earlier-attempt": (
        [attempt(1), incident(1), decision(1), attempt(2)], (agent(2, 0), agent(2, 1)), Standing(2, PLACEMENT),
    ),
    "started-and-not-journalled": (
        [attempt(1), incident(1), decision(1)], (agent(2, 0), agent(2, 1)),
        Standing(2, PLACEMENT, note=attempt(2)),
    ),
    "the-journal-knows-nothing-at-all": (
        [], (agent(3, 0), agent(3, 1)),
        Standing(3, PLACEMENT, note=attempt(3)),
    ),
    "started-in-one-of-two": ([attempt(1), incident(1), decision(1)], (agent(2, 0), agent(1, 1)), Standing(1)),
    "only-the-first-keeps-the-note": (
        [], (agent(3, 0), agent(3, 1).but(note={})),
        Standing(3, PLACEMENT, note=attempt(3)),
    ),
    "started-and-the-first-is-gone-since": (
        [attempt(1), incident(1), decision(1)], (None, agent(2, 1).but(note={})), Standing(1)
    ),
    "started-but-in-the-first": (
        [attempt(1), incident(1), decision(1)], (agent(1, 0), agent(2, 1).but(note={})), Standing(1)
    ),
    "started-and-one-is-gone-since": (
        [attempt(1), incident(1), decision(1)], (agent(2, 0), None), Standing(1)
    ),
    "could-not-be-started-in-one": (
        [attempt(1), incident(1), decision(1)], (agent(2, 0), agent(2, 1, running=False)), Standing(1),
    ),
    "given-up-on-and-decided-otherwise": (
        [attempt(1), incident(1), decision(1), incident(2), decision(2, "rebuild")], (agent(2, 0), agent(2, 1)),
        Standing(1),
    ),
    "agents-of-another-phase": (
        [], (agent(4, 0, phase=1), agent(4, 1, phase=1)), Standing(0)
    ),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "agents", "expected"), CASES.values(), ids=CASES)
def test_how_a_phase_stands(lines: list[Any], agents: tuple[Any, ...], expected: Standing) -> None:
    assert stands(lines, *agents) == expected


def comeback(*, by_hand: bool = False) -> ComebackLine:
    return ComebackLine(epoch=2, by_hand=by_hand)


def checkpoint(step: int) -> CheckpointLine:
    return CheckpointLine(step=step, written_t=0)


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        pytest.param([], 0, id="none"),
        pytest.param([comeback(), comeback()], 2, id="two"),
        pytest.param([comeback(), checkpoint(5), comeback()], 1, id="progress-resets"),
        pytest.param([checkpoint(5), comeback(), checkpoint(5), comeback()], 2, id="the-same-again-is-none"),
        pytest.param([comeback(), comeback(by_hand=True), comeback()], 1, id="a-person-resets"),
    ],
)
def test_comebacks_are_counted_since_progress(lines: list[Any], count: int) -> None:
    assert comebacks_without_progress(lines) == count


@pytest.mark.parametrize(
    ("agents", "found"),
    [
        ((agent(1, 0), agent(1, 1, running=False, exited=True)), "attempt 1 goes on, 2 workers found"),
        ((agent(1, 0, running=False, exited=True),), "attempt 1 had ended, 1 worker found"),
        ((agent(0, 0),), "nothing was running, 1 worker found"),
    ],
)
def test_what_was_found_is_told(agents: tuple[AgentStanding, ...], found: str) -> None:
    said: list[str] = []
    known = dict(enumerate(agents))
    back = Comeback(2, by_hand=True, silent_s=9.0, unwatched_s=12.0)
    with observed_by(lambda fact: said.append(fact.text) if isinstance(fact, Notice) else None):
        back.record(
            "train",
            stands([attempt(1)] if agents[0].token[2] else [], *agents),
            known,
            known,
            journal=MemoryJournal(),
            clock=PhaseClock(),
        )
    assert said == [f"train: back after 12.0 s: {found}"]
