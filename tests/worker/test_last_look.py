"""The last look at an attempt's checkpoints: ahead of the order to stop where nobody is left who could write."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from agent_fixtures import StartAgent
from agents import DEADLINE_S, AgentClient, checkpoints, script

from prefect_ft.worker import last_look
from prefect_ft.worker.checkpoint_watch import CheckpointWatch
from prefect_ft.worker.last_look import LastLook
from prefect_ft.worker.loop import Loop


class Site:
    """A last look with a real watch; `overs` counts what it told, `asked` what it asked."""

    def __init__(self, directory: Path) -> None:
        self.loop, self.overs, self.asked = Loop(), 0, 0
        self.watch = CheckpointWatch(checkpoints(directory))
        self.look = LastLook(self.watch, self.loop, self._over)
        self.loop.watch(self.watch, lambda _: self._hear())
        ask = self.watch.look

        def counted(settled: bool = False) -> int:
            self.asked += 1
            return ask(settled)

        self.watch.look = counted  # type: ignore[method-assign]

    def _over(self) -> None:
        self.overs += 1

    def _hear(self) -> None:
        for answer in self.watch.answers():
            if answer.number is not None:
                self.look.looked(answer.number, answer.why_not)

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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of day as the last look sees it, to be set."""
    now = [100.0]
    monkeypatch.setattr(last_look, "now_s", lambda: now[0])
    return now


def test_it_is_asked_at_the_stop_and_awaited(site: Site) -> None:
    site.look.begin(complete=False)
    assert (site.overs, site.look.passed_over) == (0, None)
    site.step_until_over(1)
    assert (site.asked, list(site.look.passed_over or ())) == (1, ["step-1.npz"])
    assert not site.loop.is_set("look")


def test_one_that_is_over_when_the_stop_comes_is_not_waited_for(site: Site, clock: list[float]) -> None:
    site.look.begin_ahead()
    site.step_until_over(1)
    clock[0] += last_look.LASTS_S
    site.look.begin(complete=False)
    assert (site.overs, site.asked, list(site.look.passed_over or ())) == (2, 1, ["step-1.npz"])


def test_one_that_is_not_over_yet_is_not_asked_again(site: Site, clock: list[float]) -> None:
    site.look.begin_ahead()
    site.look.begin_ahead()
    site.look.begin(complete=False)
    assert (site.overs, site.asked) == (0, 1)
    site.step_until_over(1)
    assert site.look.passed_over is not None


@pytest.mark.parametrize("why", ["long ago", "complete", "stopped twice", "another attempt"])
def test_one_that_is_no_more_as_good_is_asked_again(why: str, site: Site, clock: list[float]) -> None:
    site.look.begin_ahead()
    site.step_until_over(1)
    if why == "long ago":
        clock[0] += last_look.LASTS_S + 0.001
    elif why == "stopped twice":
        site.look.begin(complete=False)
    elif why == "another attempt":
        site.look.forget()
    overs = site.overs
    site.look.begin(complete=why == "complete")
    assert (site.overs, site.asked, site.look.passed_over) == (overs, 2, None)
    site.step_until_over(overs + 1)


def test_a_look_that_takes_too_long_is_not_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_look, "TIMEOUT_S", 0.0)
    site.watch.look = lambda settled=False: 10**6  # type: ignore[method-assign,assignment,misc]  # never answered
    site.look.begin(complete=False)
    site.step_until_over(1)
    assert site.look.passed_over is None


# -- in an agent --------------------------------------------------------------------------------------


COUNTED = """
_ask = CheckpointWatch.look
def look(self, settled=False):
    with open({path!r}, "a") as file:
        file.write("look\\n")
    return _ask(self, settled)
CheckpointWatch.look = look
"""
"""At the end of the agent's module: each look leaves a line."""


class Counting:
    """An agent whose looks are counted."""

    def __init__(self, start_agent: StartAgent, directory: Path) -> None:
        directory.mkdir()
        self._file = directory.parent / "looks"
        self._file.touch()
        faults = {
            "checkpoint_watch.py": COUNTED.format(path=str(self._file)),
            "last_look.py": "LASTS_S = 1000",
        }
        agent = start_agent(faults=faults, checkpoints=checkpoints(directory))
        self.client: AgentClient = agent.attached()
        self.answered()
        self._before = len(self._file.read_text())

    def answered(self) -> None:
        """Wait until the agent has done what it was about to do."""
        self.client.say("choose", token=self.client.token(0), limit=None, avoid=[], deaths=[])
        self.client.expect("chosen")

    @property
    def looks(self) -> int:
        return (len(self._file.read_text()) - self._before) // len("look\n")


@pytest.fixture
def counting(start_agent: StartAgent, tmp_path: Path) -> Counting:
    return Counting(start_agent, tmp_path / "ck")


@pytest.mark.parametrize("end", ["sys.exit(1)", "os.kill(os.getpid(), 9)"])
def test_an_agent_looks_as_soon_as_all_have_ended_and_one_has_failed(counting: Counting, end: str) -> None:
    client = counting.client
    client.start(script(f"import os, sys\nif os.environ['RANK'] == '1': {end}"), ranks=2, WORLD_SIZE="2")
    for _ in range(2):
        client.expect("exited")
    deadline = time.monotonic() + DEADLINE_S
    while counting.looks == 0:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert client.stop()["passed_over"] == {}
    assert counting.looks == 1


@pytest.mark.parametrize(
    ("code", "ranks", "world"),
    [
        pytest.param("", 1, "1", id="good end"),
        pytest.param("raise SystemExit(1)", 1, "2", id="others elsewhere"),
        pytest.param(
            "import subprocess; subprocess.Popen(['sleep', '1000']); raise SystemExit(1)",
            1,
            "1",
            id="somebody left",
        ),
        pytest.param(
            "import os, signal; os.environ['RANK'] == '0' or signal.pause(); raise SystemExit(1)",
            2,
            "2",
            id="a rank left",
        ),
    ],
)
def test_it_waits_for_the_stop_where_somebody_may_write_yet(
    counting: Counting, code: str, ranks: int, world: str
) -> None:
    client = counting.client
    client.start(script(code), ranks=ranks, WORLD_SIZE=world)
    client.expect("exited")
    client.say("choose", token=client.token(1), limit=None, avoid=[], deaths=[])
    client.expect("chosen")
    assert counting.looks == 0
    assert client.stop()["passed_over"] == {}
    assert counting.looks == 1
