"""What an earlier release left, read by this version; what this version writes, read by the earlier one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import releases
from releases import RELEASES, STORIES, Version, frames_of, laid_out, lines_of, this

from prefect_ft.cli import main
from prefect_ft.config import JobConfig, recorded, resolved
from prefect_ft.journal.lines import history_of, read_lines
from prefect_ft.journal.summary import summarise
from prefect_ft.orchestrate.run import job_of
from prefect_ft.run import latest_run
from prefect_ft.supervisor.events import EVENTS
from prefect_ft.worker import protocol

ENDED = {
    "completed": "completed",
    "several-attempts": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}
ORPHANED = [story for story in STORIES if story not in ENDED]

every_release = pytest.mark.parametrize("release", RELEASES)


# -- files --------------------------------------------------------------------------------------------


@every_release
@pytest.mark.parametrize("story", ENDED)
def test_a_run_that_has_ended_is_summed_up_as_it_was(tmp_path: Path, release: str, story: str) -> None:
    model = laid_out(release, story, tmp_path)
    run = latest_run(model)
    assert run is not None
    assert run.status == ENDED[story]
    (summary,) = model.glob("*/summary.json")
    was = json.loads(summary.read_text())
    now = json.loads(json.dumps(summarise(read_lines(summary.with_name("journal.jsonl"))).to_json()))
    times = {
        part: now["time_s"][part] for part in was["time_s"]
    }  # there may be further parts by now, and fields
    pairs = zip(was["attempts"], now["attempts"], strict=True)
    attempts = [{name: after[name] for name in before} for before, after in pairs]
    assert {**{name: now[name] for name in was}, "time_s": times, "attempts": attempts} == was


@every_release
@pytest.mark.parametrize("story", STORIES)
def test_a_journal_is_decided_about_as_it_was(
    tmp_path: Path, release: str, story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = laid_out(release, story, tmp_path)
    (journal,) = model.glob("*/journal.jsonl")
    assert len(history_of(read_lines(journal))) == sum(line["type"] == "incident" for line in lines_of(model))
    assert main(["replay", str(model.parent / "job.yaml"), str(journal), "--diff", "--json"]) == 0
    assert capsys.readouterr().out == ""


@every_release
@pytest.mark.parametrize("story", STORIES)
def test_a_recorded_job_is_the_one_of_its_file(tmp_path: Path, release: str, story: str) -> None:
    from prefect_ft.config import load_job

    model = laid_out(release, story, tmp_path)
    run = latest_run(model)
    assert run is not None
    assert job_of(run) == load_job(model.parent / "job.yaml")


@every_release
@pytest.mark.parametrize("story", ORPHANED)
def test_a_run_that_was_left_is_cancelled(tmp_path: Path, release: str, story: str) -> None:
    model = laid_out(release, story, tmp_path)
    assert main(["cancel", str(model)]) == 0
    assert lines_of(model)[-1]["status"] == "cancelled"
    assert main(["status", str(model)]) == 0


@every_release
def test_a_decision_that_waits_is_approved(
    tmp_path: Path, release: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = laid_out(release, "proposed", tmp_path)
    assert main(["approve", str(model), "--json"]) == 0
    run = latest_run(model)
    assert run is not None
    answer = run.answer_to(next(model.glob("*_restartable")).name, 4)
    assert answer is not None
    assert answer.answer == "approve"


@every_release
@pytest.mark.usefixtures("api")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("story", "starts"), [("killed", [1, 2]), pytest.param("left", [1, 2], marks=pytest.mark.long)]
)
def test_a_run_that_was_left_is_resumed(tmp_path: Path, release: str, story: str, starts: list[int]) -> None:
    model = laid_out(release, story, tmp_path)
    code, said = this().done("resume", str(model), cwd=tmp_path)
    assert code == 0, said
    assert [line["attempt"] for line in lines_of(model) if line["type"] == "attempt"] == starts
    result = json.loads((model.parent / "checkpoints" / "step-30.json").read_text())
    assert result == {"step": 30, "sum": 465}


# -- frames -------------------------------------------------------------------------------------------


@every_release
@pytest.mark.parametrize("number", [0, 1])
def test_orders_of_an_earlier_orchestrator_are_orders(release: str, number: int) -> None:
    orders = list(frames_of(release, number, "orders"))
    assert [protocol.checked(order) for order in orders][:1] == ["attach"]
    assert {order["op"] for order in orders} >= {"attach", "start", "stop"}


@every_release
@pytest.mark.parametrize("number", [0, 1])
def test_what_earlier_agents_say_is_of_the_same_types(release: str, number: int) -> None:
    events = list(frames_of(release, number, "events"))
    assert {event["ev"] for event in events} >= {"attached", "started", "exited", "stopped", "beat"}
    for event in events:
        known = EVENTS[event["ev"]]
        assert set(event) <= {"ev", "token", *known}
        for name in known.keys() & event.keys() - {"new"}:  # what is known of a checkpoint has grown
            assert known[name].holds(event[name]), (event["ev"], name)


# -- jobs of this version -----------------------------------------------------------------------------

ASKED_OF_A_RELEASE = """
import json, sys
from prefect_ft.config import JobConfig
JobConfig.model_validate(json.load(sys.stdin))
"""

INFRASTRUCTURES: dict[str, dict[str, Any]] = {
    "process": {"type": "process", "systems": ["s0", {"name": "s1", "env": {"A": "1"}}], "workers": 2},
    "docker": {"type": "docker", "image": "train:1", "systems": ["s0"]},
    "kubernetes": {"type": "kubernetes", "image": "train:1", "namespace": "team", "systems": ["n0"]},
}


def job(infrastructure: str, **fields: Any) -> JobConfig:
    phase = {"name": "one", "command": ["true"], "checkpoints": {"path": "/ck"}}
    base = {
        "name": "j",
        "model_dir": "/m",
        "infrastructure": INFRASTRUCTURES[infrastructure],
        "phases": [phase],
    }
    return JobConfig.model_validate({**base, "autorestart": {"max_num_restarts": 3}, **fields})


def is_read_by(release: Version, told: dict[str, Any]) -> bool:
    """Whether a release's models take a job."""
    asked = subprocess.run(
        [sys.executable, "-c", ASKED_OF_A_RELEASE],
        env={"PATH": ""},
        cwd=release.path,
        input=json.dumps(told),
        text=True,
        capture_output=True,
        check=False,
    )
    assert asked.returncode == 0 or "ValidationError" in asked.stderr, asked.stderr
    return asked.returncode == 0


@pytest.mark.parametrize("infrastructure", INFRASTRUCTURES)
def test_a_job_that_uses_nothing_new_is_read_by_an_earlier_release(
    earlier: Version, infrastructure: str
) -> None:
    told = recorded(job(infrastructure))
    assert is_read_by(earlier, told)
    assert JobConfig.model_validate(told) == job(infrastructure)


def test_a_job_that_uses_something_new_is_not_read_by_a_release_that_does_not_know_it(
    earlier: Version,
) -> None:
    new = job("process", resume="never")
    assert recorded(new)["resume"] == "never"
    assert not is_read_by(earlier, recorded(new))
    assert "resume" in resolved(job("process"))
    assert not is_read_by(earlier, resolved(job("process")))


# -- agents of a later version ------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_an_agent_of_a_later_protocol_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from watched import SLEEPS, write_job

    later = later_release(tmp_path / "later")
    site = write_job(tmp_path / "site", SLEEPS)
    with monkeypatch.context() as environment:
        environment.setenv("PYTHONPATH", str(later.path))
        site.watch()
    site.orphan()
    try:
        living = set(site.processes())
        assert main(["cancel", str(site.model_dir)]) == 1
        said = capsys.readouterr().err
        assert "the agent of worker 0 speaks version 2 of the protocol and prefect-ft" in said
        assert "pip install" in said
        assert (set(site.processes()), site.run.status) == (living, "running")
        code, said = later.done("cancel", str(site.model_dir), cwd=tmp_path)
        assert (code, site.processes()) == (0, {}), said
    finally:
        site.close()


def later_release(path: Path) -> Version:
    """Return this version with the protocol's next version."""
    import shutil

    shutil.copytree(
        releases.ROOT / "prefect_ft", path / "prefect_ft", ignore=shutil.ignore_patterns("__pycache__")
    )
    frames = path / "prefect_ft" / "worker" / "frames.py"
    text = frames.read_text()
    assert text.count("\nVERSION = 1\n") == 1
    frames.write_text(text.replace("\nVERSION = 1\n", "\nVERSION = 2\n"))
    return Version(path)
