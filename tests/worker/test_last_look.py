"""The last look at an attempt's checkpoints."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from agents import DEADLINE_S, checkpoints

from prefect_ft.worker import last_look
from prefect_ft.worker.checkpoint_watch import CheckpointWatch
from prefect_ft.worker.last_look import LastLook
from prefect_ft.worker.loop import Loop


class Site:
    """A last look with a real watch; `overs` counts what it told."""

    def __init__(self, directory: Path) -> None:
        self.loop, self.overs = Loop(), 0
        self.watch = CheckpointWatch(checkpoints(directory))
        self.look = LastLook(self.watch, self.loop, self._over)
        self.loop.watch(self.watch, lambda _: self._hear())

    def _over(self) -> None:
        self.overs += 1

    def _hear(self) -> None:
        for answer in self.watch.answers():
            if answer.number is not None:
                self.look.on_looked(answer.number, answer.why_not)

    def step_until_over(self, times: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self.overs < times:
            assert time.monotonic() < deadline
            self.loop.step()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    directory = tmp_path / "ck"
    directory.mkdir()
    (directory / "step-1.npz").write_text("cut off")
    return Site(directory)


def test_it_is_awaited(site: Site) -> None:
    site.look.begin(complete=False)
    assert (site.overs, site.look.skipped) == (0, None)
    site.step_until_over(1)
    assert list(site.look.skipped or ()) == ["step-1.npz"]
    assert not site.loop.is_set("look")


def test_a_look_that_takes_too_long_is_not_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_look, "TIMEOUT_S", 0.0)
    site.watch.look = lambda settled=False: 10**6  # type: ignore[method-assign,assignment,misc]  # never answered
    site.look.begin(complete=False)
    site.step_until_over(1)
    assert site.look.skipped is None
