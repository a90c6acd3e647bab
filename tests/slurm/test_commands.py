"""Commands on runs that live on a real Slurm, wait in its queue, or have lost their orchestrator."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import processes_of
from slurm_runs import Run

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def run(slurm_nodes: Any, tmp_path: Path) -> Iterator[Run]:
    """A run of two nodes and a spare, that has not begun."""
    made = Run(slurm_nodes, tmp_path / "run", infrastructure={"nodes": 2, "spares": 1})
    yield made
    made.close()


def command(run: Run, *words: str, returns: int = 0) -> str:
    """Run `prefect-ft`, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "prefect_ft.cli", *words],
        env=run.cluster.env, cwd=run.place, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == returns, done.stdout + done.stderr
    return done.stdout + done.stderr


def in_training(run: Run) -> list[str]:
    """Bring it to where it trains; return the jobs that it has."""
    run.begin()
    run.reach(8)
    run.until(lambda: sorted(run.cluster.jobs().values()) == ["PENDING", "RUNNING"])  # a successor waits
    return [*run.cluster.jobs()]


def in_the_queue(run: Run) -> list[str]:
    """Bring it to where it waits, behind a job that has all nodes; return its job."""
    blocker = run.cluster.run("sbatch", "--parsable", "-N4", "-o", "/dev/null", "--wrap", "sleep 600").strip()
    run.until(lambda: run.cluster.jobs() == {blocker: "RUNNING"})
    run.begin()
    run.until(lambda: "submitted job" in run.output())
    return [job for job in run.cluster.jobs() if job != blocker]


def killed(run: Run, to: Callable[[Run], list[str]]) -> list[str]:
    jobs = to(run)
    run.kill()
    return jobs


def is_gone(run: Run, jobs: list[str]) -> bool:
    """Whether jobs leave the queue, and all that was started for the run on nodes ends."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not {*jobs} & run.cluster.jobs().keys() and not processes_of(run.place):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("where", [pytest.param(in_training, marks=pytest.mark.long), in_the_queue])
@pytest.mark.parametrize(
    "is_killed", [pytest.param(False, id="watched", marks=pytest.mark.long), pytest.param(True, id="killed")]
)
def test_cancel_leaves_no_job_and_no_process(run: Run, where: Any, is_killed: bool) -> None:
    jobs = killed(run, where) if is_killed else where(run)
    assert len(jobs) == (2 if where is in_training else 1)
    assert "cancelled" in command(run, "cancel", "model")
    if not is_killed:
        run.end(3)
    assert is_gone(run, jobs)
    assert "Slurm" not in command(run, "status", "model")
    assert not [*Path(os.environ["PREFECT_FT_RUNTIME_DIR"]).glob("*/slurm.json")]


def test_status_and_logs_of_a_run_that_waits_and_then_trains(run: Run) -> None:
    (job,) = in_the_queue(run)
    said = command(run, "status", "model")
    assert said == f"no phase has begun\nSlurm job {job} is in the queue: squeue --start -j {job}\n"
    assert command(run, "logs", "model") == ""
    for wrong in (("run", "--fresh", "job.yaml"), ("resume", "model")):
        assert "is held by process" in command(run, *wrong, returns=2)
    (blocker,) = run.cluster.jobs().keys() - {job}
    run.cluster.run("scancel", blocker)
    run.reach(4)
    run.until(lambda: len(run.cluster.jobs().keys() - {blocker}) == 2)
    (successor,) = run.cluster.jobs().keys() - {job, blocker}
    lines = command(run, "status", "model").splitlines()
    assert lines[0].startswith("train: running at step")
    assert lines[1].startswith(f"Slurm job {job}: 3 nodes until 20")
    assert lines[2:] == [f"Slurm job {successor} is in the queue: squeue --start -j {successor}"]
    assert "nothing was left behind" in command(run, "clean")
    run.finish_soon()
    run.end()
    assert is_gone(run, [job, successor])


@pytest.mark.long
def test_clean_after_somebody_has_removed_the_model_directory(run: Run) -> None:
    jobs = killed(run, in_training)
    shutil.rmtree(run.place / "model")
    assert "removed" in command(run, "clean")
    assert is_gone(run, jobs)


def begun(run: Run, *words: str) -> subprocess.Popen[bytes]:
    """Start `prefect-ft` as an orchestrator: with a Prefect of its own, as a user's."""
    with (run.place / "output").open("ab") as output:
        run.process = subprocess.Popen(
            [sys.executable, "-m", "prefect_ft.cli", *words],
            env=run.cluster.env, cwd=run.place, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    return run.process


@pytest.mark.long
def test_a_run_that_lost_its_orchestrator_in_the_queue_is_resumed_in_its_job(run: Run) -> None:
    (job,) = killed(run, in_the_queue)
    begun(run, "resume", "model")
    (blocker,) = run.cluster.jobs().keys() - {job}
    run.cluster.run("scancel", blocker)
    run.reach(4)
    assert run.cluster.jobs()[job] == "RUNNING"
    run.finish_soon()
    run.end()
    assert is_gone(run, [job, *run.cluster.jobs()])


@pytest.mark.long
@pytest.mark.parametrize("where", [in_training, in_the_queue])
def test_a_fresh_run_releases_what_a_killed_one_has(run: Run, where: Any) -> None:
    jobs = killed(run, where)
    others = run.cluster.jobs().keys() - {*jobs}
    begun(run, "run", "--fresh", "job.yaml")
    run.until(lambda: not {*jobs} & {*running_or_pending(run)})
    if others:
        run.cluster.run("scancel", *others)
    run.until(lambda: bool(running_or_pending(run)))
    began_s = time.time()
    run.until(lambda: any(each.at_s > began_s for each in run.told("step")))
    run.finish_soon()
    run.end()
    assert not run.is_doubled()
    assert is_gone(run, [*run.cluster.jobs()])


def running_or_pending(run: Run) -> list[str]:
    return [job for job, state in run.cluster.jobs().items() if state in ("RUNNING", "PENDING")]
