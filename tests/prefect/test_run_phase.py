"""Running phases from Python: what is given, where things lie, and a stop that is wanted between two phases."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import flow

import prefect_ft
from prefect_ft import JobConfig, run_phase, train_flow
from prefect_ft.errors import ConfigError
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.summary import PhaseSummary
from prefect_ft.observe import AttemptStarted, Fact, PhaseEnded, observed_by
from prefect_ft.prefect_edge.tasks import Attempts
from prefect_ft.run import Run, latest_run, phase_directories
from prefect_ft.supervisor import AttemptFailedError

Job = Callable[..., JobConfig]


def run(job: JobConfig, phase: int | str = 0) -> PhaseSummary:
    @flow
    def user_flow() -> PhaseSummary:
        return run_phase(job, phase)

    return user_flow()


@pytest.mark.parametrize("name", prefect_ft.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(prefect_ft, name)


@pytest.mark.parametrize(("phase", "name"), [(0, "phase-0"), (1, "phase-1"), ("phase-1", "phase-1")])
def test_a_phase_by_number_or_by_name(job: Job, phase: int | str, name: str) -> None:
    assert run(job("pass", "pass"), phase).phase == name


@pytest.mark.parametrize("phase", ["phase-2", 2, -1])
def test_a_phase_that_is_not_there_is_refused_before_anything_is_written(
    job: Job, tmp_path: Path, phase: int | str
) -> None:
    with pytest.raises(ConfigError, match="phases: no phase "):
        run_phase(job("pass", "pass"), phase)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rebuild_only", [False, True], ids=["in-place", "rebuilt"])
def test_a_restart_does_not_wait_until_prefect_has_entered_the_task(
    job: Job, monkeypatch: pytest.MonkeyPatch, rebuild_only: bool
) -> None:
    restarted = threading.Event()

    def follow(attempts: Attempts) -> AttemptFailedError | None:
        assert restarted.wait(60)
        return next_end(attempts)

    def observe(fact: Fact) -> None:
        if isinstance(fact, AttemptStarted) and fact.attempt == 2:
            restarted.set()

    next_end = Attempts.next_end
    monkeypatch.setattr(Attempts, "next_end", follow)
    policy = {"max_num_restarts": 3, "rebuild_only": rebuild_only}
    code = "import os; os.environ['PREFECT_FT_ATTEMPT'] == '1' and os.abort()"
    with observed_by(observe):
        summary = run(job(code, autorestart=policy))
    assert (summary.status, sum(summary.restarts.values())) == ("completed", 1)


def test_relative_paths_start_at_the_working_directory(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absolute = job("open('here', 'w')")
    monkeypatch.chdir(tmp_path)
    phases = tuple(
        phase.model_copy(
            update={"cwd": None, "checkpoints": phase.checkpoints.model_copy(update={"path": "ck"})}
        )
        for phase in absolute.phases
        if phase.checkpoints
    )
    relative = absolute.model_copy(update={"model_dir": "model", "phases": phases})
    assert train_flow(relative)[0]["status"] == "completed"
    assert (tmp_path / "here").exists()
    assert (tmp_path / "model").is_dir()


def test_a_journal_that_lies_elsewhere_is_found_from_the_phases_directory(job: Job, tmp_path: Path) -> None:
    config = job("pass", journal_dir="journals")
    run(config)
    (journal,) = (tmp_path / "journals").iterdir()
    (directory,) = phase_directories(config.model_dir)
    assert (directory / "journal.jsonl").resolve() == journal
    assert [line.type for line in read_lines(journal)] == [
        "phase",
        "attempt",
        "incident",
        "decision",
        "end",
    ]


def test_a_stop_that_is_wanted_when_a_phase_has_just_ended_keeps_the_next_from_running(
    job: Job, tmp_path: Path
) -> None:
    def stop_after_the_first(fact: Fact) -> None:
        if isinstance(fact, PhaseEnded) and fact.phase == "phase-0":
            signal.raise_signal(signal.SIGINT)

    config = job("pass", "open('ran', 'w')")
    with observed_by(stop_after_the_first):
        state: Any = train_flow(config, return_state=True)
    assert state.is_cancelled()
    assert not (tmp_path / "ran").exists()


def test_no_signal_interrupts_what_takes_down_the_end(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose end was not taken down counts as running, and nobody watches it."""
    describe = Run.describe

    def described(run: Run, /, **told: Any) -> None:
        if told.get("status") == "completed":
            for _ in range(2):
                signal.raise_signal(signal.SIGTERM)
        describe(run, **told)

    monkeypatch.setattr(Run, "describe", described)
    config = job("pass")
    train_flow(config)
    run = latest_run(Path(config.model_dir))
    assert run is not None
    assert run.status == "completed"
