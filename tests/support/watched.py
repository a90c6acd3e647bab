"""Runs that somebody watches and runs that nobody watches, without Prefect: `python watched.py JOB.yaml`.

The watcher is made of the parts of which train-flow is made, in a process of its own. It says `up` once a
rank has reached a step; a test that kills it then has an orphan.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import preloaded
from agents import processes_of

from prefect_ft.backends.clearing import clear_directory
from prefect_ft.config import load_job
from prefect_ft.observe import Fact, StepReached, observed_by
from prefect_ft.orchestrate.entering import Entered
from prefect_ft.orchestrate.executing import execute
from prefect_ft.orchestrate.live import Live
from prefect_ft.orchestrate.run import begin_run, held, resume_run
from prefect_ft.run import Run, latest_run, vacancy

SLEEPS = "import time; from prefect_ft.heartbeat import beat; beat(step=1); time.sleep(600)"
"""A rank that reaches a step and then only waits to be ended."""


@dataclass
class Site:
    """A job in a directory of its own, and whoever watches it."""

    job: Path
    watcher: subprocess.Popen[str] | None = None

    @property
    def model_dir(self) -> Path:
        return self.job.parent / "model"

    @property
    def run(self) -> Run:
        """The run that began last."""
        run = latest_run(self.model_dir)
        assert run is not None
        return run

    @property
    def runtime(self) -> Path:
        return Path(self.run.record()["runtime"])

    def watch(self) -> None:
        """Have the job watched by a process; returns when a rank has reached a step."""
        self.watcher = preloaded.started(
            [sys.executable, __file__, str(self.job)], stdout=subprocess.PIPE, text=True
        )
        assert self.watcher.stdout is not None
        assert self.watcher.stdout.readline() == "up\n"

    def watch_to_the_end(self) -> None:
        """Have the job watched until its run has ended, one that has not is resumed."""
        words = [sys.executable, __file__, str(self.job)]
        assert preloaded.completed(words, stdout=subprocess.DEVNULL).returncode == 0

    def orphan(self) -> None:
        """Take the watcher away as SIGKILL does."""
        assert self.watcher is not None
        self.watcher.kill()
        self.watcher.wait()

    def processes(self) -> dict[int, list[str]]:
        """All agents and ranks of the site's runs."""
        runtime = Path(os.environ["PREFECT_FT_RUNTIME_DIR"])
        runs = [path for path in runtime.iterdir() if path.name[:2] == "20"]
        return {pid: words for run in runs for pid, words in processes_of(run).items()}

    def close(self) -> None:
        """End whatever the test left."""
        if self.watcher is not None:
            self.watcher.kill()
            self.watcher.communicate()
        for path in Path(os.environ["PREFECT_FT_RUNTIME_DIR"]).glob("20*-*-*"):
            clear_directory(path)


def write_job(directory: Path, *codes: str, grace_s: float = 5, **fields: object) -> Site:
    """Write a job with a phase for each code, `one`, `two`, …; its ranks run it. `fields` are put over it."""
    directory.mkdir(parents=True, exist_ok=True)
    phases = [
        {"name": name, "command": [sys.executable, "-S", "-c", code]}
        for name, code in zip(("one", "two", "three"), codes, strict=False)
    ]
    job = {
        "name": "watched",
        "model_dir": "model",
        "stop_grace_s": grace_s,
        "orphan_timeout_s": 60,
        "phases": phases,
        **fields,
    }
    path = directory / "job.yaml"
    path.write_text(json.dumps(job))  # which is YAML
    return Site(path)


def tree(directory: Path, but: str | None = None) -> dict[str, bytes | None]:
    """What a directory holds: names, and what is in each file; none whose name has `but` in it."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
        if but is None or but not in path.name
    }


# -- the watcher --------------------------------------------------------------------------------------


def main(job_file: str) -> None:
    job = load_job(job_file)
    free = vacancy(Path(job.model_dir), job.lease_s)
    is_unfinished = free.previous is not None and free.previous.status == "running"
    holding = resume_run(free) if is_unfinished else begin_run(job, free)
    with observed_by(_say), held(holding, job) as (_, stop):
        execute(Entered(job, holding), stop, Live())


def _say(fact: Fact) -> None:
    if isinstance(fact, StepReached):
        print("up", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
