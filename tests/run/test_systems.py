"""A system serves one run at a time, and is free as soon as nobody lives who holds it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prefect_ft.errors import ConfigError, SystemHeldError
from prefect_ft.run.systems import HeldSystems, Service, check, hold, lock_path

FIRST, SECOND = Service("r-1", "one", "/m/one"), Service("r-2", "two", "/m/two")

Take = Callable[..., HeldSystems]


@pytest.fixture
def take(runtime_dir: Path) -> Iterator[Take]:
    held: list[HeldSystems] = []

    def make(service: Service, *systems: str) -> HeldSystems:
        held.append(hold(runtime_dir, systems, service))
        return held[-1]

    yield make
    for each in held:
        each.release()


@pytest.fixture
def elsewhere(runtime_dir: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Have another process run this, with `hold`, `root` and the services known; returns when it says so."""
    started: list[subprocess.Popen[str]] = []

    def start(text: str) -> subprocess.Popen[str]:
        program = f"""
import fcntl, os, sys
from pathlib import Path
from prefect_ft.run.systems import *
root, first, second = Path({str(runtime_dir)!r}), Service("r-1", "one", "/m/one"), Service("r-2", "two", "/m/two")
{text}
print("done", flush=True)
sys.stdin.read()
"""
        command = [sys.executable, "-c", program]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == "done\n"
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_a_run_that_names_no_system_holds_none(take: Take, runtime_dir: Path) -> None:
    take(FIRST)
    assert list(runtime_dir.iterdir()) == []


def test_another_run_is_refused_and_told_whom_a_system_serves(take: Take, runtime_dir: Path) -> None:
    take(FIRST, "s0", "s1")
    with pytest.raises(SystemHeldError) as caught:
        take(SECOND, "s2", "s1")
    error = caught.value
    assert (error.system, error.run_id, error.job, error.model_dir) == ("s1", "r-1", "one", "/m/one")
    assert str(error) == (
        "system s1 serves run r-1 of the job one in /m/one: wait until it is free, end it "
        "(`prefect-ft cancel r-1`), or name other systems; nothing was started"
    )
    take(Service("r-3", "three", "/m/three"), "s2")  # who is refused holds nothing
    with pytest.raises(SystemHeldError):
        check(runtime_dir, ["s0"])


def test_who_comes_back_to_a_run_finds_its_name(take: Take) -> None:
    first = take(FIRST, "s0")
    again = take(FIRST, "s0")
    first.release()
    with pytest.raises(SystemHeldError):
        take(SECOND, "s0")
    again.release()
    again.release()
    take(SECOND, "s0")
    with pytest.raises(SystemHeldError, match="serves run r-2"):
        take(FIRST, "s0")


def test_a_system_is_free_when_its_holders_were_killed(
    take: Take, elsewhere: Callable[..., subprocess.Popen[str]], runtime_dir: Path
) -> None:
    agent = f"fcntl.flock(os.open({str(lock_path(runtime_dir / 'r-1', 's0'))!r}, os.O_RDONLY), fcntl.LOCK_SH)"
    orchestrator = elsewhere('held = hold(root, ["s0"], first)')
    worker = elsewhere(agent)
    for victim in (orchestrator, worker):
        with pytest.raises(SystemHeldError, match="serves run r-1 "):
            take(SECOND, "s0")
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    take(SECOND, "s0")


def test_a_look_takes_nothing_and_makes_nothing(take: Take, runtime_dir: Path) -> None:
    check(runtime_dir, ["s0"])
    assert list(runtime_dir.iterdir()) == []
    take(FIRST, "s0").release()
    check(runtime_dir, ["s0"])
    check(runtime_dir, ["s0"])
    take(FIRST, "s0")
    check(runtime_dir, ["s0"], "r-1")
    with pytest.raises(SystemHeldError):
        check(runtime_dir, ["s0"], "r-2")


def test_of_many_at_once_one_gets_each_system(
    elsewhere: Callable[..., subprocess.Popen[str]], runtime_dir: Path
) -> None:
    """Others look at the same time, which must refuse nobody."""
    race = """
print("done", flush=True)
sys.stdin.readline()
who = Service(f"r-{os.getpid()}", "j", "m")
won = []
for number in range(100):
    try:
        won.append((number, hold(root, [f"s{number}"], who)))
    except SystemHeldError as error:
        assert error.run_id.startswith("r-"), error
print(*[number for number, _ in won], flush=True)
"""
    runs = [elsewhere(race) for _ in range(3)]
    for each in runs:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    assert runs[0].stdout is not None
    won = [each.stdout.readline().split() for each in runs if each.stdout is not None]
    assert sorted(int(number) for each in won for number in each) == list(range(100))


def test_who_never_settles_is_not_waited_for(
    take: Take, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_ft.run.systems.SETTLED_S", 0.02)
    take(FIRST, "s0").release()
    with lock_path(runtime_dir / "r-1", "s0").open() as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with pytest.raises(
            SystemHeldError, match="system s0 serves another process: wait until it is free, "
        ):
            take(SECOND, "s0")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"run": 1}'], ids=repr)
def test_a_file_that_says_nothing_refuses_all_the_same(take: Take, runtime_dir: Path, content: bytes) -> None:
    take(FIRST, "s0")
    lock_path(runtime_dir / "r-1", "s0").write_bytes(content)
    for use in (lambda: take(SECOND, "s0"), lambda: check(runtime_dir, ["s0"])):
        with pytest.raises(SystemHeldError, match="system s0 serves another process"):
            use()


def test_a_directory_that_cannot_be_used(runtime_dir: Path, take: Take) -> None:
    (runtime_dir / "systems").mkdir()
    (runtime_dir / "systems" / "s0").mkdir()
    with pytest.raises(ConfigError, match=r"PREFECT_FT_RUNTIME_DIR: .*/s0: Is a directory"):
        take(FIRST, "s0")


def test_the_directory_is_kept_from_cleaners(take: Take, runtime_dir: Path) -> None:
    """systemd-tmpfiles passes over directories on which somebody has a lock."""
    held = take(FIRST, "s0")
    fd = os.open(runtime_dir / "systems", os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    held.release()
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
