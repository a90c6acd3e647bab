"""The user's own commands beside the training: executed when they are due, ended in time, and what they say."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest

from prefect_ft.model import Counters, Decision, Entry, History, Incident
from prefect_ft.supervisor.command import Command, Outcome
from prefect_ft.supervisor.upkeep import SystemPlan, Upkeep, UpkeepPlan

DEADLINE_S = 30.0


def run(*words: str, timeout_s: float = DEADLINE_S, end: bool = False) -> Outcome:
    ended: SimpleQueue[Outcome] = SimpleQueue()
    command = Command(words, cwd="/", env=dict(os.environ), timeout_s=timeout_s, on_end=ended.put)
    if end:
        command.end()
    outcome = ended.get(timeout=DEADLINE_S)
    assert command.outcome is outcome
    return outcome


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo fine", Outcome(exit_code=0, output=b"fine\n", problem="exit code 0: fine")),
        (
            "echo one; echo two >&2; exit 3",
            Outcome(exit_code=3, output=b"one\ntwo\n", problem="exit code 3: two"),
        ),
        ("exit 1", Outcome(exit_code=1, output=b"", problem="exit code 1")),
        ("kill -9 $$", Outcome(exit_code=-9, output=b"", problem="signal 9")),
    ],
    ids=["succeeds", "says-why", "says-nothing", "killed"],
)
def test_how_a_command_ended(script: str, expected: Outcome) -> None:
    assert run("sh", "-c", script) == expected


def test_a_command_that_is_not_there_has_not_succeeded() -> None:
    outcome = run("/no/such/program")
    assert (outcome.exit_code, outcome.output) == (None, b"")
    assert outcome.problem.startswith("/no/such/program does not start: ")


def test_one_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    outcome = run("sh", "-c", f"sleep 600 & echo $! > {pid}; wait", timeout_s=0.5)
    assert (outcome.exit_code, outcome.problem) == (None, "did not end within 0.5 s")
    await_end(int(pid.read_text()))


def await_end(pid: int) -> None:
    """Wait until a process that is no child of this one is gone, or nobody has reaped it yet."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return
        except OSError:
            return
        time.sleep(0.005)
    raise AssertionError(f"process {pid} lives")


def test_what_it_leaves_running_is_ended_with_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    assert run("sh", "-c", f"sleep 600 & echo $! > {pid}").succeeded
    await_end(int(pid.read_text()))


def test_one_that_cannot_be_watched_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def no_more(pid: int) -> int:
        begun.append(pid)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("os.pidfd_open", no_more)
    assert run("sleep", "600").problem == "sleep does not start: [Errno 24] Too many open files"
    await_end(*begun)


def test_one_that_nobody_needs_any_more_is_ended() -> None:
    assert run("sleep", "600", end=True) == Outcome(exit_code=None, output=b"", problem="was ended")


# -- checks -----------------------------------------------------------------------------------------

CHECK = "echo $PREFECT_FT_SYSTEM >> checked; test ! -e bad-$PREFECT_FT_SYSTEM || { echo broken; exit 1; }"
Make = Callable[..., Upkeep]


@pytest.fixture
def upkeep(tmp_path: Path) -> Upkeep:
    systems = {
        name: SystemPlan(env=dict(os.environ), check=("sh", "-c", CHECK), heal=("sh", "-c", "exit 0"))
        for name in ("s0", "s1", "s2")
    }
    plan = UpkeepPlan(
        systems=systems, cwd=str(tmp_path), heal_timeout_s=DEADLINE_S, check_timeout_s=DEADLINE_S
    )
    return Upkeep(plan, lambda: None)


def unfit(upkeep: Upkeep, systems: tuple[str, ...]) -> dict[str, str]:
    """Check systems; return those that do not pass, and trust the others."""
    checks = upkeep.check(systems)
    wait(lambda: checks.are_over)
    upkeep.trust({*systems} - {*checks.failed})
    return checks.failed


def wait(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def checked(tmp_path: Path) -> list[str]:
    """The systems that were checked since the last call."""
    path = tmp_path / "checked"
    names = sorted(path.read_text().split()) if path.exists() else []
    path.unlink(missing_ok=True)
    return names


def history(*suspects: dict[str, int]) -> History:
    """What was decided, with what each system was suspected of afterwards."""
    return tuple(
        Entry(
            incident=Incident(t=0, kind="exit"),
            decision=Decision(
                n=n, rule="r", action="rebuild", reason="", placement=(), counters=Counters(suspects=counts)
            ),
        )
        for n, counts in enumerate(suspects, start=1)
    )


def test_a_system_is_checked_once_until_it_is_suspected_again(upkeep: Upkeep, tmp_path: Path) -> None:
    assert unfit(upkeep, ("s0", "s1")) == {}
    assert checked(tmp_path) == ["s0", "s1"]
    assert unfit(upkeep, ("s0", "s1")) == {}
    assert checked(tmp_path) == []
    for course, expected in (
        ((), []),
        (({"s1": 1},), ["s1"]),
        (({"s1": 1}, {"s1": 1}), []),
        (({"s1": 1}, {"s1": 2}), ["s1"]),
        (({"s1": 2}, {}), []),
        (({}, {"s0": 1, "s1": 1}), ["s0", "s1"]),
    ):
        upkeep.suspect(history(*course))
        assert unfit(upkeep, ("s0", "s1")) == {}
        assert checked(tmp_path) == expected


def test_one_that_fails_is_named_with_the_reason_and_checked_again(upkeep: Upkeep, tmp_path: Path) -> None:
    (tmp_path / "bad-s1").touch()
    assert unfit(upkeep, ("s0", "s1")) == {"s1": "exit code 1: broken"}
    checked(tmp_path)
    (tmp_path / "bad-s1").unlink()
    assert unfit(upkeep, ("s0", "s1")) == {}
    assert checked(tmp_path) == ["s1"]


def test_who_runs_an_attempt_is_above_suspicion(upkeep: Upkeep, tmp_path: Path) -> None:
    upkeep.trust(("s0",))
    assert unfit(upkeep, ("s0", "s2")) == {}
    assert checked(tmp_path) == ["s2"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"severity": "minor"}, True, id="minor"),
        pytest.param({"severity": "major"}, True, id="major"),
        pytest.param({"severity": "critical"}, False, id="critical"),
        pytest.param({"severity": "warning"}, False, id="warning"),
        pytest.param({"severity": "major", "healed": False}, False, id="tried-already"),
        pytest.param({"severity": "major", "system": None}, False, id="nowhere"),
        pytest.param({"severity": "major", "system": "s9"}, False, id="elsewhere"),
    ],
)
def test_which_faults_are_healed(upkeep: Upkeep, fields: dict, expected: bool) -> None:
    fault = Incident(
        **{"t": 0, "kind": "device_fault", "system": "s1", "device": "0", "code": "E1", **fields}
    )
    assert upkeep.can_heal(fault) is expected
