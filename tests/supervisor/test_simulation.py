"""Whatever fails, whenever, in whatever order: a phase comes to its end, and nothing is done twice or too late."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from simulated import Course, Troubles

from prefect_ft.decide import decide
from prefect_ft.journal.lines import history_of, read_lines
from prefect_ft.journal.records import AttemptLine, DecisionLine
from prefect_ft.model import RESTARTS

TROUBLES = {
    "ranks-fail": Troubles(),
    "connections-break": Troubles(breaks=0.05, late=0.02, twice=0.05),
    "agents-die": Troubles(agent=0.03, no_room=0.1, system=0.3),
    "orchestrators-die": Troubles(death=0.02),
    "orchestrators-are-replaced": Troubles(zombie=0.01),
    "runs-are-cancelled": Troubles(cancel=1.0, death=0.005, breaks=0.02),
    "disks-are-full": Troubles(disk=0.05, death=0.01),
    "everything": Troubles(
        death=0.01, zombie=0.003, breaks=0.02, late=0.01, twice=0.02, agent=0.01, no_room=0.05, system=0.1,
        cancel=0.2, disk=0.002,
    ),
}  # fmt: skip
MEMORY = Path("/dev/shm")


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
    restarts = 0
    for line in lines:
        if isinstance(line, DecisionLine) and line.decision.action in RESTARTS:
            restarts += 1
        if isinstance(line, AttemptLine):
            assert line.decisions == sum(
                isinstance(each, DecisionLine) for each in lines[: lines.index(line)]
            ), line


def run(seed: int, troubles: Troubles) -> None:
    where = MEMORY if os.access(MEMORY, os.W_OK) else None
    with TemporaryDirectory(dir=where, prefix="pft-sim-") as directory:
        check(Course(seed, troubles, Path(directory)))


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    """Nothing is started here."""


@pytest.mark.parametrize("name", TROUBLES)
def test_every_course_comes_to_its_end(name: str) -> None:
    for seed in range(40):
        try:
            run(seed, TROUBLES[name])
        except BaseException as exc:
            exc.add_note(f"seed {seed} of {name}")
            raise
