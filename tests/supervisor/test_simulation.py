"""Whatever fails, whenever, in whatever order: a phase comes to its end, and nothing is done twice or too late."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from simulated import HANG_GRACE_S, HANG_S, STOP_GRACE_S, Agent, Course, Troubles, Wire, World

from prefect_ft.backends.base import Worker
from prefect_ft.decide import decide
from prefect_ft.journal.lines import history_of, read_lines
from prefect_ft.journal.records import (
    AttemptLine,
    CheckpointLine,
    ComebackLine,
    DecisionLine,
    HandOverLine,
    IncidentLine,
    Line,
    TenureLine,
)
from prefect_ft.model import CONTINUES, Incident
from prefect_ft.observe import Decided, Notice
from prefect_ft.supervisor.asking import Until
from prefect_ft.supervisor.lifecycle import TRANSITIONS
from prefect_ft.supervisor.lifecycle.states import State

TROUBLES = {
    "ranks-fail": Troubles(),
    "connections-break": Troubles(breaks=0.05, late=0.02, twice=0.05),
    "agents-die": Troubles(agent=0.03, no_room=0.1, system=0.3),
    "orchestrators-die": Troubles(death=0.02),
    "orchestrators-are-replaced": Troubles(zombie=0.01),
    "runs-are-cancelled": Troubles(cancel=1.0, death=0.005, breaks=0.02),
    "ranks-hang": Troubles(rank=0.2, hang=0.5, death=0.002, breaks=0.01),
    "devices-fail": Troubles(rank=0.2, fault=0.6, unfit=0.3, death=0.005, cancel=0.2),
    "disks-are-full": Troubles(disk=0.05, death=0.01),
    "allocations-end": Troubles(rank=0.2, tenure=0.9, death=0.005, breaks=0.01, cancel=0.1, system=0.1),
    "everything": Troubles(
        death=0.01, zombie=0.003, breaks=0.02, late=0.01, twice=0.02, agent=0.01, no_room=0.05, system=0.1,
        cancel=0.2, disk=0.002, hang=0.1, fault=0.1, unfit=0.1, tenure=0.2,
    ),
}  # fmt: skip
MEMORY = Path("/dev/shm")
ORDINARY = 40
"""Seeds of each kind of trouble in the ordinary tests."""
MANY = 1300
"""And in the long ones."""


def check(course: Course) -> None:
    """Run a course to its end and hold it against what must be true of every course."""
    last = course.run()
    world = course.world
    lines = read_lines(course.journal)
    history = history_of(lines)
    assert last is None or last.action in ("complete", "fail", "cancel"), last
    if last is not None:
        assert world.agents == {}
    for number in range(len(history)):
        decision = history[number].decision
        if decision is not None:
            known = (*history[:number], type(history[number])(incident=history[number].incident))
            assert decide(course.policy, known).action == decision.action
    attempts = [line for line in lines if isinstance(line, AttemptLine)]
    numbers = [line.attempt for line in attempts]
    assert numbers == sorted({*numbers})
    if last is not None and last.action == "complete":
        assert {*world.ended[attempts[-1].token].values()} == {0}
    check_told(course, len(history) + course.lives + course.takeovers + 1)
    check_incidents(course, lines)
    found = [entry.incident.evidence.text for entry in history if entry.incident.evidence is not None]
    assert "the allocation has ended" not in found, "what a scheduler takes away has not failed"
    pool: frozenset[str] | None = None
    for number, line in enumerate(lines):
        if isinstance(line, TenureLine):
            pool = frozenset(line.systems)
        if isinstance(line, AttemptLine):
            assert pool is None or pool >= {*line.placement}, (
                f"attempt {line.attempt} is outside of its allocation"
            )
            before = sum(isinstance(each, DecisionLine) for each in lines[:number])
            assert line.decisions == before, f"attempt {line.attempt} is not explained by the last decision"


def check_told(course: Course, most: int) -> None:
    """Hold what observers are told against what was the case."""
    for fact in course.facts:
        if isinstance(fact, Decided):
            assert type(fact.attempt) is int
            assert 0 <= fact.attempt <= most
        if isinstance(fact, Notice):
            assert fact.text


def check_incidents(course: Course, lines: list[Line]) -> None:
    """Hold what is recorded of incidents and comebacks against what was the case."""
    incidents = [entry.incident for entry in history_of(lines)]
    decided = {line.n: line.decision.action for line in lines if isinstance(line, DecisionLine)}
    assert {*[*decided.values()][:-1]} <= CONTINUES, "what ends the phase is the last thing decided"
    for before, line in pairwise(lines):
        if isinstance(line, ComebackLine):
            assert line.by_hand is False
            assert line.silent_s is not None
            assert 0 <= line.silent_s <= line.t - before.t + 0.001
        if isinstance(line, HandOverLine):
            saved = [each.step for each in lines[: lines.index(line)] if isinstance(each, CheckpointLine)]
            assert line.step == max(saved, default=None), "the next tenure begins with what was saved last"
        if isinstance(line, IncidentLine) and isinstance(line.facts, Incident):
            kind = line.facts.kind
            assert line.ended_t <= line.t
            if kind == "suspended" and course.response == "restart":
                assert line.t - line.ended_t >= HANG_S / 2, "its time counts from when nothing came any more"
            if kind in ("rebuild_failed", "replacement_failed"):
                assert (kind == "replacement_failed") == (decided.get(line.n - 1) == "replace_workers")
    if course.response == "shadow":
        assert not any("diagnose" in order for _, order in course.story), "who only looks touches nothing"
        assert not any(incident.kind == "suspended" for incident in incidents)


def run(seed: int, troubles: Troubles) -> Course:
    """Run a course and check it; what fails says by which seed."""
    where = MEMORY if os.access(MEMORY, os.W_OK) else None
    with TemporaryDirectory(dir=where, prefix="pft-sim-") as directory:
        course = Course(seed, troubles, Path(directory))
        try:
            check(course)
            course.lines = read_lines(course.journal)
        except BaseException as exc:
            exc.add_note(f"seed {seed}")
            raise
        return course


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    """Nothing is started here."""


@pytest.mark.parametrize("name", TROUBLES)
def test_every_course_comes_to_its_end(name: str) -> None:
    for seed in range(ORDINARY):
        run(seed, TROUBLES[name])


@pytest.mark.long
@pytest.mark.parametrize("name", TROUBLES)
def test_every_course_of_many_comes_to_its_end(name: str) -> None:
    for seed in range(ORDINARY, ORDINARY + MANY):
        run(seed, TROUBLES[name])


def test_a_seed_says_everything_that_happens() -> None:
    first, second = (run(50, TROUBLES["everything"]) for _ in range(2))
    assert first.story == second.story
    assert len(first.story) > 10


def test_the_courses_go_through_every_state() -> None:
    """Troubles that never come would prove nothing."""
    courses = [run(seed, troubles) for troubles in TROUBLES.values() for seed in range(12)]
    assert {state for course in courses for state in course.states} == {*TRANSITIONS}
    assert sum(course.lives for course in courses) > 20
    assert sum(course.takeovers for course in courses) > 5
    kinds = {entry.incident.kind for course in courses for entry in history_of(course.lines)}
    assert kinds >= {
        "completed", "cancelled", "exit", "suspended", "device_fault", "system_lost", "rebuild_failed",
        "in_place_failed", "handed_over", "preempted",
    }  # fmt: skip
    assert {grace_s for course in courses for grace_s in course.world.graces} == {
        0.0,
        HANG_GRACE_S,
        STOP_GRACE_S,
    }


def test_an_agent_that_dies_takes_all_its_connections_with_it() -> None:
    """Also one on which nobody has attached yet: its reader would wait for ever."""
    world = World(0, Troubles())
    agent = Agent(world, Worker(number=0, system="s0", epoch=1, decision=0))
    heard: list[object] = []
    attached, silent = (Wire(world, agent, heard.append) for _ in range(2))
    attached.to_agent({"op": "attach", "version": 1, "run": "r", "key": "k", "epoch": 1, "have": {}})
    while agent.wire is None and world.step(None):
        pass
    agent.dies()
    while world.step(None):
        pass
    assert not attached.is_open
    assert not silent.is_open
    assert heard.count(None) == 2


@pytest.mark.parametrize("state", ["running", "diagnosing", "saving", "stopping", "healing", "idle"])
def test_a_state_that_contradicts_itself_is_found(state: State, tmp_path: Path) -> None:
    """A lifecycle that has just begun has no attempt, awaits nothing, and has ended nothing."""
    with Course(0, Troubles(), tmp_path).opened(1) as (supervisor, _):
        lifecycle = supervisor._lifecycle
        lifecycle.validate_state()
        if state == "idle":
            lifecycle._wait = Until(lambda: True)
        else:
            lifecycle.state, lifecycle._wait = state, Until(lambda: True)
        with pytest.raises(AssertionError):
            lifecycle.validate_state()
