"""What a phase isolates gets into the quarantine, whoever dies meanwhile, and nobody waits for it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefect_ft.journal.records import DecisionLine, Line, Misread, PhaseLine
from prefect_ft.model import Counters, Decision
from prefect_ft.observe import Fact, Notice, observed_by, tell
from prefect_ft.run import isolation_record as module
from prefect_ft.run.isolation_record import Recorder
from prefect_ft.run.quarantine import Quarantined, add, read, release

UTC = "2026-01-02T03:04:05.000Z"
SOMETHING = Notice(text="something")


def decision(n: int, *isolate: str, utc: str = UTC) -> DecisionLine:
    decided = Decision(
        n=n, rule="node-lost", action="rebuild", reason=f"lost {n}", placement=("s9",), counters=Counters(),
        isolate=isolate,
    )  # fmt: skip
    return DecisionLine(t=n, utc=utc, n=n, facts=decided)


def entry(n: int, system: str, **fields: Any) -> Quarantined:
    known = {"since": UTC, "run": "r", "job": "j", "phase": "p", "rule": "node-lost", "reason": f"lost {n}"}
    return Quarantined(system=system, **{**known, **fields})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "quarantine.jsonl"


@pytest.fixture
def phase(tmp_path: Path, path: Path) -> Callable[..., Recorder]:
    """Return the recorder of a phase with these lines in its journal."""

    def make(lines: list[Line], ttl_s: float | None = None) -> Recorder:
        return Recorder(path, tmp_path, lambda: lines, ttl_s=ttl_s, run="r", job="j", phase="p")

    return make


def watch(recorder: Recorder, *steps: Callable[[], object]) -> list[str]:
    """Let something be told after each step, and return the notices beside."""
    facts: list[Fact] = []
    with observed_by(facts.append), recorder.recording():
        for step in steps:
            step()
            tell(SOMETHING)
    return [fact.text for fact in facts if isinstance(fact, Notice) and fact is not SOMETHING]


def test_isolated_systems_are_added_with_the_reason(phase: Callable[..., Recorder], path: Path) -> None:
    lines: list[Line] = [PhaseLine(run="r", job="j", phase="p")]
    more = [decision(1), decision(2, "s1", "s0"), decision(3, "s2")]
    assert watch(phase(lines), *(lambda line=line: lines.append(line) for line in more)) == []
    assert read(path) == (entry(2, "s0"), entry(2, "s1"), entry(3, "s2"))


def test_an_isolation_for_a_time_is_quarantined_for_that_time(
    phase: Callable[..., Recorder], path: Path
) -> None:
    since, until = "2126-01-02T03:04:05.000Z", "2126-01-02T04:04:05.000Z"
    watch(phase([decision(1, "s0", utc=since)], ttl_s=3600), lambda: None)
    assert read(path) == (entry(1, "s0", since=since, until=until),)


def test_one_that_is_over_already_is_not(phase: Callable[..., Recorder], path: Path) -> None:
    watch(phase([decision(1, "s0")], ttl_s=3600), lambda: None)
    assert read(path) == ()


def test_without_isolation_there_is_no_file(phase: Callable[..., Recorder], tmp_path: Path) -> None:
    watch(phase([decision(1)]), lambda: None)
    assert list(tmp_path.iterdir()) == []


def test_a_decision_that_is_not_understood_isolates_nothing(
    phase: Callable[..., Recorder], path: Path
) -> None:
    """Where the history is read it is an error; the others are recorded all the same."""
    lost = DecisionLine(t=1, utc=UTC, n=1, facts=Misread(why="action: got 'explode'"))
    assert watch(phase([lost, decision(2, "s1")]), lambda: None) == []
    assert read(path) == (entry(2, "s1"),)


def test_a_comeback_adds_what_is_missing_and_not_what_was_released(
    phase: Callable[..., Recorder], path: Path
) -> None:
    watch(phase([decision(1, "s0")]), lambda: None)
    assert release(path, "s0")
    watch(phase([decision(1, "s0"), decision(2, "s1")]), lambda: None)
    assert read(path) == (entry(2, "s1"),)


def test_a_mark_that_is_damaged_is_none(phase: Callable[..., Recorder], path: Path, tmp_path: Path) -> None:
    for text in ('{"decisions": 7}', "{"):
        (tmp_path / module.MARK).write_text(text)
        watch(phase([decision(1, "s0")]), lambda: None)
        assert read(path) == (entry(1, "s0"),)
        assert json.loads((tmp_path / module.MARK).read_text()) == {"decisions": [1]}


def test_a_file_that_cannot_be_changed_is_told_and_nothing_more(
    phase: Callable[..., Recorder], path: Path
) -> None:
    path.write_text("{")
    (notice,) = watch(phase([decision(1, "s0")]), lambda: None)
    beginning = f"not put into the quarantine, out of use in this run alone: s0: {path}:1: is not JSON; "
    assert notice.startswith(beginning)
    assert path.read_text() == "{"
    path.unlink()
    watch(phase([decision(1, "s0")]), lambda: None)
    assert read(path) == (entry(1, "s0"),)


def test_nobody_waits_for_a_file_that_somebody_holds(
    phase: Callable[..., Recorder], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_WAIT_S", 0.01)
    add(path, [])  # makes the lock
    with (path.parent / ".quarantine.jsonl.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        recorder = phase([decision(1, "s0")])
        notices = watch(recorder, lambda: None)
    assert notices == [f"{path} does not answer: systems may be missing in the quarantine"]
    assert recorder._thread is not None
    recorder._thread.join(30)
    assert read(path) == (entry(1, "s0"),)
