"""What agents report is put where it belongs; what they report of ranks that are not their own is ignored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from heard import heard
from plans import beside

from prefect_ft.backends.base import PART_ENDED, TENURE_ENDED
from prefect_ft.clock import PhaseClock
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import CameUpLine, Line
from prefect_ft.model import Evidence
from prefect_ft.observe import Notice, observed_by
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.hangs import Hangs
from prefect_ft.supervisor.listening import Listener
from prefect_ft.supervisor.reports import Reports
from prefect_ft.supervisor.runlog import RunLog
from prefect_ft.supervisor.saves import Saves
from prefect_ft.supervisor.stopping import HandOver
from prefect_ft.supervisor.unresumed import Unresumed
from prefect_ft.supervisor.unsaved import Unsaved
from prefect_ft.supervisor.values import OFF, Values
from prefect_ft.supervisor.warner import Warner

SAMPLE = {
    "over": False, "state": "S", "cpu_s": 1.0, "wait_s": None, "io": None, "output": 0, "beats": 0, "beat_s": None,
    "step": None, "stage": None,
}  # fmt: skip
DIAGNOSED: dict[str, Any] = {"stacks": {}, "processes": []}


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    """Nothing is started here."""


@pytest.fixture
def listener(tmp_path: Path) -> Listener:
    """Listens to an attempt of one rank on each of two workers."""
    return listening(tmp_path)


def listening(
    tmp_path: Path,
    evidence: Callable[[int], Evidence | None] = lambda _: None,
    tenure_ends: Callable[[str], None] = lambda _: None,
    lines: Sequence[Line] = (),
) -> Listener:
    journal, clock, beside_ranks = MemoryJournal(lines), PhaseClock(), beside(tmp_path, ("s0", "s1"))
    made = Listener(
        "train",
        log=RunLog(tmp_path / "run.log", tmp_path / "places"),
        saves=Saves(),
        unsaved=Unsaved(None, warner := Warner("train", journal, clock), clock),
        unresumed=Unresumed(warner, journal),
        reports=Reports(beside_ranks["sources"], ("s0", "s1"), journal, clock),
        hangs=Hangs(beside_ranks["suspension"], journal, clock, lambda _: None),
        values=Values("train", OFF, journal, clock),
        journal=journal,
        clock=clock,
        system_of=lambda number: f"s{number}",
        evidence=evidence,
        tenure_ends=tenure_ends,
    )
    made.attempt = Attempt(1, {0: 0, 1: 1})
    return made


@pytest.mark.parametrize("rank", [1, 7], ids=["another-workers", "nobodys"])
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("exited", {"code": 1}),
        ("output", {"text": "x\n"}),
        ("beat", {"step": 5}),
        ("dropped", {"bytes": 3}),
        ("excerpt", {"parts": [{"offset": 0, "line": 1, "text": "x\n"}], "bytes": 2}),
        ("fault", {"report": {"device": "0", "code": "E", "severity": "major", "message": "m"}}),
        ("in_process", {"report": {"iteration": 1, "rank": 0, "kind": "k", "text": "t", "took_ms": 1}}),
        ("sample", {}),
        ("diagnosis", {}),
        ("unhandled", {"signal": 10}),
    ],
)
def test_ranks_that_are_not_its_own_are_ignored_and_that_is_said_once(
    listener: Listener, tmp_path: Path, kind: str, fields: dict[str, Any], rank: int
) -> None:
    inside = {"sample": SAMPLE, "diagnosis": DIAGNOSED}.get(kind)
    named = {"rank": rank} if inside is None else {"ranks": {str(rank): inside}}
    if kind == "unhandled":
        named = {"ranks": [rank]}
    said: list[str] = []
    with observed_by(lambda fact: said.append(fact.text) if isinstance(fact, Notice) else None):
        for _ in range(2):
            listener.hear(0, heard(kind, **fields, **named))
    assert said == ["train: worker 0 reports ranks that are not its own; that is ignored"]
    attempt = listener.attempt
    assert attempt is not None
    assert (attempt.over, attempt.last_step, listener._journal.lines) == (False, None, [])
    assert (tmp_path / "run.log").read_text() == ""


def test_what_is_of_another_attempt_is_no_ones_fault(listener: Listener, tmp_path: Path) -> None:
    """It comes late: its gang may have been another one."""
    listener.hear(0, heard("output", token=(1, 0, 2), rank=1, text="late\n"))
    assert (tmp_path / "run.log").read_text() == "[a2 w0 r1] late\n"


def test_the_first_step_of_an_attempt_is_recorded_once_also_by_who_comes_back(
    listener: Listener, tmp_path: Path
) -> None:
    for step in (None, 7, 8):
        listener.hear(0, heard("beat", rank=0, step=step))
    listener.hear(1, heard("beat", rank=1, step=9))
    back = listening(tmp_path, lines=listener._journal.lines)
    back.hear(1, heard("beat", rank=1, step=10))
    for journal in (listener._journal, back._journal):
        told = [
            (line.attempt, line.worker, line.what) for line in journal.lines if isinstance(line, CameUpLine)
        ]
        assert told == [(1, 0, "first-step")]


@pytest.mark.parametrize(
    ("rule", "ending"), [(TENURE_ENDED, HandOver.BEGUN), (PART_ENDED, HandOver.PART)], ids=["all", "a-part"]
)
def test_workers_that_go_with_their_allocation_are_handed_over_and_not_lost(
    tmp_path: Path, rule: str, ending: HandOver
) -> None:
    ends: list[tuple[str, HandOver]] = []
    told = Evidence(rule=rule, text="slurm-2 is being ended")
    made = listening(tmp_path, evidence=lambda _: told, tenure_ends=lambda *each: ends.append(each))
    made.hear(0, heard("leaving", within_s=27.0))
    assert ends == [("slurm-2 is being ended", ending)]
    assert made.attempt is not None
    assert made.attempt.report is None
