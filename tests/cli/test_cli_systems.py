"""Two jobs that name the same systems: the second is refused for as long as anybody of the first lives."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from agents import wait_until_ended
from watched import SLEEPS, Site, tree, write_job

from prefect_ft.cli import main
from prefect_ft.run import runs_in


class Said(NamedTuple):
    code: int
    out: str
    err: str


Say = Callable[..., Said]
MakeSite = Callable[..., Site]

ENDS = "pass"


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def run(*words: object) -> Said:
        code = main([str(word) for word in words])
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture
def site(tmp_path: Path) -> Iterator[MakeSite]:
    """Write a job that names systems, s0 for its worker if no others are given, and end what is left of it."""
    sites: list[Site] = []

    def make(code: str, *systems: str, **fields: Any) -> Site:
        pool = {"type": "process", "systems": systems or ["s0"]}
        directory = tmp_path / f"site-{len(sites)}"
        sites.append(write_job(directory, code, **{"infrastructure": pool, **fields}))
        return sites[-1]

    yield make
    for each in sites:
        each.close()


def assert_refused(said: Said, site: Site, system: str, by: Site) -> None:
    """Exit code 2, one line that says who and what to do, and nothing of the refused job has begun."""
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1), said
    whom = f"run {by.run.run_id} of the job watched in {by.model_dir}"
    assert said.err.startswith(f"error: system {system} serves {whom}: wait until it is free, end it ")
    assert list(site.model_dir.glob("*_restartable")) == []
    assert runs_in(site.model_dir) == []


def test_the_second_run_is_refused_while_the_first_or_its_agents_live(say: Say, site: MakeSite) -> None:
    first = site(SLEEPS)
    first.watch()
    second = site(ENDS)
    assert_refused(say("run", second.job), second, "s0", first)
    first.orphan()
    assert_refused(say("run", second.job), second, "s0", first)
    assert_refused(say("run", second.job, "--fresh"), second, "s0", first)


def test_a_spare_is_held_too(say: Say, site: MakeSite) -> None:
    first = site(SLEEPS, "s0", "s1")
    first.watch()
    second = site(ENDS, "s1", "s2")
    assert_refused(say("run", second.job), second, "s1", first)


def test_systems_of_every_phase_are_held_for_the_whole_run(say: Say, site: MakeSite) -> None:
    first = site(SLEEPS)
    job = json.loads(first.job.read_text())
    job["phases"].append({"name": "late", "command": ["true"], "infrastructure": {"systems": ["s7"]}})
    first.job.write_text(json.dumps(job))
    first.watch()
    second = site(ENDS, "s7")
    assert_refused(say("run", second.job), second, "s7", first)


def test_other_systems_and_none_that_are_named_go_beside_each_other(site: MakeSite) -> None:
    sites = [site(SLEEPS, "s0"), site(SLEEPS, "s1"), site(SLEEPS, infrastructure={"type": "process"})]
    sites.append(site(SLEEPS, infrastructure={"type": "process"}))
    for each in sites:
        each.watch()
    assert [each.run.record()["systems"] for each in sites] == [["s0"], ["s1"], [], []]


def test_systems_are_free_at_once_when_all_of_a_run_was_killed(
    prefect_server: None, say: Say, site: MakeSite
) -> None:
    first = site(SLEEPS)
    first.watch()
    processes = first.processes()
    first.orphan()
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    for pid in processes:
        wait_until_ended(pid)
    second = site(ENDS)
    assert say("run", second.job).code == 0
    assert second.run.status == "completed"


def test_who_comes_back_to_a_run_keeps_its_systems(prefect_server: None, say: Say, site: MakeSite) -> None:
    waits = SLEEPS.replace("time.sleep(600)", "\nimport os\nwhile not os.path.exists('go'): time.sleep(0.01)")
    first = site(waits)
    first.watch()
    first.orphan()
    (first.job.parent / "go").touch()
    assert say("resume", first.model_dir).code == 0
    second = site(ENDS)
    assert say("run", second.job).code == 0


def test_a_fresh_run_takes_over_the_systems_of_its_orphan(
    prefect_server: None, say: Say, site: MakeSite
) -> None:
    first = site(f"import os\nif os.path.exists('again'): raise SystemExit\nopen('again', 'x'); {SLEEPS}")
    first.watch()
    first.orphan()
    said = say("run", first.job, "--fresh")
    assert said.code == 0, said.err
    assert [run.status for run in runs_in(first.model_dir)] == ["cancelled", "completed"]


@pytest.mark.parametrize("command", ["resume", "run"])
def test_a_run_cannot_be_gone_on_with_while_another_has_its_systems(
    say: Say, site: MakeSite, command: str
) -> None:
    failed = site("import sys; sys.exit(1)")
    failed.watch_to_the_end()
    assert failed.run.status == "failed"
    other = site(SLEEPS)
    other.watch()
    before = tree(failed.job.parent)
    words = [failed.model_dir] if command == "resume" else [failed.job, "--resume"]
    said = say(command, *words)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert f"system s0 serves run {other.run.run_id} of the job watched" in said.err
    assert tree(failed.job.parent) == before


def test_a_fresh_run_that_could_not_begin_does_not_end_the_orphan(say: Say, site: MakeSite) -> None:
    orphan = site(SLEEPS, "s0")
    orphan.watch()
    orphan.orphan()
    other = site(SLEEPS, "s1")
    other.watch()
    orphan.job.write_text(orphan.job.read_text().replace('["s0"]', '["s0", "s1"]'))
    before = orphan.processes()
    said = say("run", orphan.job, "--fresh")
    assert (said.code, f"system s1 serves run {other.run.run_id}" in said.err) == (2, True)
    assert (orphan.run.status, orphan.processes()) == ("running", before)


def test_a_flow_that_finds_a_system_taken_is_refused_as_well(
    prefect_server: None, say: Say, site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody took it between the look and the flow."""
    first = site(SLEEPS)
    first.watch()
    second = site(ENDS)
    monkeypatch.setattr("prefect_ft.cli.foreground.check_systems", lambda *_: None)
    said = say("run", second.job)
    assert said.code == 2
    assert f"error: system s0 serves run {first.run.run_id}" in said.err
    assert runs_in(second.model_dir) == []
