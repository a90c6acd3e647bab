"""A time-out of Prefect's is a stop like a cancel: the ranks have their grace, and the run can be resumed."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.futures import wait

from prefect_ft import JobConfig, run_phase, train_flow
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import IncidentLine
from prefect_ft.run import Run, holder_of, latest_run, phase_directories

Job = Callable[..., JobConfig]

pytestmark = pytest.mark.timeout(method="thread")  # Prefect's own alarm is for a process that has set none

LONG_S = 600.0
"""A time-out that the tests cut short, once the rank is up."""

SHORT_S = 3.0
"""One that nothing can cut short: a test passes whenever it comes, also before the rank is up."""

TRAINING = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
if os.path.exists("had-grace"):
    sys.exit()
if os.path.exists("up"):
    open("up", "w").close()
signal.sigwait({signal.SIGTERM})
open("had-grace", "w").close()
"""
"""Tells by a pipe that it is up, and ends once it is asked to; when it is started again it is done at once."""


@pytest.fixture
def training(job: Job) -> JobConfig:
    """A training that never ends by itself."""
    return job(TRAINING, stop_grace_s=60)


@pytest.fixture
def time_is_up(tmp_path: Path) -> Iterator[None]:
    """Have Prefect's own timer, set by an outer flow or task, come to its end once the rank is up."""
    os.mkfifo(tmp_path / "up")

    def cut_short() -> None:
        (tmp_path / "up").read_bytes()
        signal.setitimer(signal.ITIMER_REAL, 0.001)

    thread = threading.Thread(target=cut_short, daemon=True)
    thread.start()
    yield
    thread.join()


def run_of(job: JobConfig) -> Run:
    run = latest_run(Path(job.model_dir))
    assert run is not None
    return run


def assert_stopped(job: JobConfig) -> None:
    """Journal and run say that it was stopped, and why; nobody holds the run."""
    lines = read_lines(phase_directories(job.model_dir)[-1] / "journal.jsonl")
    incidents = [line.incident for line in lines if isinstance(line, IncidentLine)]
    assert [(each.kind, each.evidence.text) for each in incidents] == [("cancelled", "timed out in Prefect")]
    assert (lines[-1].type, lines[-1].status) == ("end", "cancelled")
    assert (run_of(job).status, holder_of(run_of(job))) == ("cancelled", None)


def assert_had_grace(tmp_path: Path) -> None:
    assert (tmp_path / "had-grace").exists()


def test_a_flow_that_times_out_stops_its_training(
    training: JobConfig, tmp_path: Path, time_is_up: None, nobody_left: None
) -> None:
    state: Any = train_flow.with_options(timeout_seconds=LONG_S)(training, return_state=True)
    assert state.name == "TimedOut"
    assert_stopped(training)
    assert_had_grace(tmp_path)


def test_a_run_that_timed_out_can_be_resumed(
    training: JobConfig, tmp_path: Path, time_is_up: None, nobody_left: None
) -> None:
    train_flow.with_options(timeout_seconds=LONG_S)(training, return_state=True)
    timed_out = run_of(training)
    assert train_flow(training, unfinished="resume")[0]["status"] == "completed"
    assert (run_of(training).run_id, run_of(training).status) == (timed_out.run_id, "completed")


@pytest.mark.parametrize("which", ["flow", "task"])
def test_a_flow_or_task_of_a_users_own_that_times_out(
    training: JobConfig, tmp_path: Path, which: str, time_is_up: None, nobody_left: None
) -> None:
    @task(timeout_seconds=LONG_S if which == "task" else None)
    def train() -> None:
        run_phase(training)

    @flow(timeout_seconds=LONG_S if which == "flow" else None)
    def user_flow() -> None:
        train()

    state: Any = user_flow(return_state=True)
    assert state.is_failed()
    assert_stopped(training)
    assert_had_grace(tmp_path)


def test_a_task_in_a_thread_that_times_out(training: JobConfig, nobody_left: None) -> None:
    """There Prefect raises an error between two instructions, and never while a thread waits."""

    @task(timeout_seconds=SHORT_S)
    def train() -> None:
        run_phase(training)

    @flow
    def user_flow() -> None:
        future = train.submit()
        wait([future])
        assert future.state.name == "TimedOut"

    user_flow()
    assert_stopped(training)


def test_a_flow_that_times_out_stops_the_training_of_a_task_in_a_thread(
    training: JobConfig, nobody_left: None
) -> None:
    @task
    def train() -> None:
        run_phase(training)

    @flow(timeout_seconds=SHORT_S)
    def user_flow() -> None:
        train.submit().wait()

    state: Any = user_flow(return_state=True)
    assert state.name == "TimedOut"
    assert_stopped(training)


@pytest.mark.parametrize("where", ["its loop's thread", "another thread"])
def test_an_asynchronous_flow_that_times_out(training: JobConfig, where: str, nobody_left: None) -> None:
    """Prefect cancels it when it awaits something, and no sooner."""

    @flow(timeout_seconds=SHORT_S)
    async def user_flow() -> None:
        if where == "another thread":
            await asyncio.to_thread(run_phase, training)
        else:
            run_phase(training)
            await asyncio.sleep(0)

    async def run_flow() -> Any:
        return await user_flow(return_state=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Prefect leaves a client of its own open
        assert asyncio.run(run_flow()).name == "TimedOut"
        gc.collect()
    assert_stopped(training)


def test_an_error_in_another_branch_of_a_flow_leaves_no_training_unwatched(
    job: Job, tmp_path: Path, nobody_left: None
) -> None:
    """Prefect waits for the threads of its tasks, whatever the flow ends with."""
    for pipe in ("up", "go"):
        os.mkfifo(tmp_path / pipe)
    training = job("open('up', 'w').close(); open('go').read()")
    is_raised = threading.Event()

    def let_go() -> None:
        is_raised.wait()
        (tmp_path / "go").write_text("")

    @task
    def train() -> None:
        run_phase(training)

    @flow
    def user_flow() -> None:
        train.submit()
        (tmp_path / "up").read_bytes()
        is_raised.set()
        raise ValueError("another branch")

    thread = threading.Thread(target=let_go, daemon=True)
    thread.start()
    state: Any = user_flow(return_state=True)
    assert (state.is_failed(), run_of(training).status) == (True, "completed")
    assert holder_of(run_of(training)) is None
