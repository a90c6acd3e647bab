"""Monitors are listened to from where they were left, each line once, and never waited for."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prefect_ft.config import Faults
from prefect_ft.supervisor import fault_sources as module
from prefect_ft.supervisor.calls import Calls
from prefect_ft.supervisor.fault_sources import FaultSources, SourcePlan

DEADLINE_S = 30.0


class Ears:
    """What sources have told, on the thread that waits for it."""

    def __init__(self, directory: Path, faults: Faults) -> None:
        self.calls = Calls()
        self.told: list[str] = []
        plan = SourcePlan(
            faults=faults, place=directory / "place.json", cwd=str(directory), env=dict(os.environ)
        )
        self.sources = FaultSources(plan, self.calls, lambda line: self.told.append(line.text))

    def hear(self, count: int) -> list[str]:
        """Wait until so many lines have come in all."""
        while len(self.told) < count:
            assert select.select([self.calls], [], [], DEADLINE_S)[0], self.told
            self.calls.make()
        return self.told

    def close(self) -> None:
        self.sources.close()
        self.calls.close()


Listen = Callable[..., Ears]


@pytest.fixture
def listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listen]:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    made: list[Ears] = []

    def make(**fields: object) -> Ears:
        made.append(Ears(tmp_path, Faults(**fields)))
        return made[-1]

    yield make
    for ears in made:
        ears.close()


def begun(ears: Ears, directory: Path) -> Ears:
    """Wait until the file's place is known: what is appended from now on is told."""
    while not (directory / "place.json").exists():
        select.select([], [], [], 0.002)
    return ears


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_file_is_read_from_its_end_on_whole_lines_at_a_time(listen: Listen, tmp_path: Path) -> None:
    path = tmp_path / "faults"
    path.write_text("before\n")
    ears = begun(listen(file=str(path)), tmp_path)
    append(path, "one\n\ntw")
    assert ears.hear(1) == ["one"]
    append(path, "o\nthree\n")
    assert ears.hear(3) == ["one", "two", "three"]


def test_a_file_that_comes_later_is_read_from_its_start(listen: Listen, tmp_path: Path) -> None:
    ears = begun(listen(file=str(tmp_path / "faults")), tmp_path)
    (tmp_path / "scratch").write_text("one\n")
    (tmp_path / "scratch").rename(tmp_path / "faults")
    assert ears.hear(1) == ["one"]


@pytest.mark.parametrize("how", ["replaced", "cut"])
def test_a_file_that_begins_anew_is_read_from_its_start(listen: Listen, tmp_path: Path, how: str) -> None:
    path = tmp_path / "faults"
    path.write_text("a long line before\n")
    ears = begun(listen(file=str(path)), tmp_path)
    append(path, "one\n")
    ears.hear(1)
    if how == "replaced":
        (tmp_path / "scratch").write_text("two\n" * 20)
        (tmp_path / "scratch").rename(path)
        assert ears.hear(21) == ["one"] + ["two"] * 20
    else:
        path.write_text("two\n")
        assert ears.hear(2) == ["one", "two"]


def test_who_comes_back_goes_on_where_the_one_before_it_was(listen: Listen, tmp_path: Path) -> None:
    path = tmp_path / "faults"
    path.write_text("before\n")
    first = begun(listen(file=str(path)), tmp_path)
    append(path, "one\n")
    first.hear(1)
    first.close()
    append(path, "two\n")
    second = listen(file=str(path))
    append(path, "three\n")
    assert second.hear(2) == ["two", "three"]


def test_one_that_died_before_anything_came_has_missed_nothing(listen: Listen, tmp_path: Path) -> None:
    path = tmp_path / "faults"
    path.write_text("before\n")
    begun(listen(file=str(path)), tmp_path).close()
    append(path, "one\n")
    assert listen(file=str(path)).hear(1) == ["one"]


def test_a_command_is_told_of_by_what_is_new(listen: Listen, tmp_path: Path) -> None:
    """It lists what there is: what stays is no news, what comes back is."""
    now, runs = tmp_path / "now", tmp_path / "runs"
    now.write_text("")
    runs.write_text("")
    ears = listen(command=["sh", "-c", "cat now && echo >> runs"], every_s=0.1)

    def told_after(listed: str) -> list[str]:
        """What has been told when it has listed this at least once, and the next time has begun."""
        (tmp_path / "next").write_text(listed)
        (tmp_path / "next").rename(now)
        until = len(runs.read_text()) + 3
        while len(runs.read_text()) < until:
            select.select([ears.calls], [], [], 0.01)
            ears.calls.make()
        return [text for text in ears.told if not text.startswith("did not end")]

    assert told_after("a\n") == ["a"]
    assert told_after("a\nb\n") == ["a", "b"]
    assert told_after("b\n") == ["a", "b"]
    assert told_after("a\nb\n") == ["a", "b", "a"]


def test_a_command_that_fails_says_why_and_is_tried_again(listen: Listen, tmp_path: Path) -> None:
    ears = listen(
        command=["sh", "-c", "test -e ok && echo fault || { echo no driver; exit 4; }"], every_s=0.05
    )
    assert ears.hear(1) == ["exit code 4: no driver"]
    (tmp_path / "ok").touch()
    assert ears.hear(2)[-1] == "fault"


def test_one_that_hangs_is_ended_in_its_time_and_holds_nobody_up(listen: Listen, tmp_path: Path) -> None:
    path = tmp_path / "faults"
    path.write_text("")
    ears = begun(listen(command=["sleep", "600"], every_s=0.2, file=str(path)), tmp_path)
    append(path, "one\n")
    assert set(ears.hear(2)) == {"one", "did not end within 0.2 s"}
