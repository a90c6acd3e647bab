"""Runs on the tests' Slurm, and what their ranks did, step by step.

`python slurm_runs.py JOB.yaml run|resume` is an orchestrator as `prefect-ft` has it, which no Prefect follows.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from slurm import Slurm

DEADLINE_S = 120.0

TRAINING = """
import fcntl, os, time, zipfile
from pathlib import Path
from prefect_ft.heartbeat import beat, should_checkpoint

known, place = os.environ, Path(os.environ["PLACE"])
rank, world = int(known["RANK"]), int(known["WORLD_SIZE"])
life = f"{known['PREFECT_FT_PHASE']}-{known['PREFECT_FT_ATTEMPT']}"
last, save_every, pause_s = int(known["LAST"]), int(known["SAVE_EVERY"]), float(known["PAUSE_S"])
begun = known.get("PREFECT_FT_RESUME_FROM")
step = int(Path(begun).stem.rpartition("-")[2]) if begun else 0

def say(word):
    with open(place / "told", "a") as file:
        file.write(f"{time.time()} {word} {life} {rank} {step} {known['PREFECT_FT_SYSTEM']} {os.getpid()}\\n")

lock = open(place / f"rank-{rank}", "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    say("doubled")
say("begin")

def reached(other):
    try:
        return int((place / f"at-{life}-{other}").read_text() or 0) >= step
    except FileNotFoundError:
        return False

while step < last:
    step += 1
    if step % 5 == 1 and (place / "finish").exists():
        last = min(last, int((place / "finish").read_text()))
    (place / f"at-{life}-{rank}").write_text(str(step).zfill(9))
    for other in range(world):
        while not reached(other):
            time.sleep(0.005)
    time.sleep(pause_s)
    say("step")
    beat(step=step)
    is_asked = rank == 0 and should_checkpoint()
    if rank == 0 and (step % save_every == 0 or is_asked):
        with zipfile.ZipFile(place / "checkpoints" / ".tmp", "w") as file:
            file.writestr("weights", "x" * 1000)
        os.rename(place / "checkpoints" / ".tmp", place / "checkpoints" / f"step-{step}.npz")
        say("asked" if is_asked else "saved")
say("end")
"""
"""Ranks wait for each other at every step, as collectives do; a second process of a rank says that it is `doubled`."""


@dataclass(frozen=True)
class Told:
    """A line of a rank: when, what, in which attempt of which phase, by which rank, at which step, on which node."""

    at_s: float
    word: str
    life: str
    rank: int
    step: int
    node: str
    pid: int


class Run:
    """A job in a directory of its own, whose file system all nodes see."""

    def __init__(
        self, cluster: Slurm, place: Path, *, last: int = 1_000_000, save_every: int = 5, pause_s: float = 0.05,
        infrastructure: dict[str, Any] | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        self.cluster, self.place = cluster, place
        (place / "checkpoints").mkdir(parents=True)
        (place / "train.py").write_text(TRAINING)
        env = {"PLACE": str(place), "LAST": str(last), "SAVE_EVERY": str(save_every), "PAUSE_S": str(pause_s)}
        document = {
            "name": place.name,
            "model_dir": str(place / "model"),
            "stop_grace_s": 1,
            "infrastructure": {
                "type": "slurm",
                "nodes": 2,
                "time": "60",
                "partition_timeout_s": 2,
                "silence_timeout_s": 3,
                **(infrastructure or {}),
            },
            "autorestart": {"max_num_restarts": 5},
            "env": env,
            "phases": [
                {
                    "name": "train",
                    "command": [sys.executable, str(place / "train.py")],
                    "checkpoints": {"path": str(place / "checkpoints"), "on_demand": {"grace_s": 5}},
                }
            ],
            **fields,
        }
        self.job = place / "job.yaml"
        self.job.write_text(yaml.safe_dump(document))
        self.process: subprocess.Popen[bytes] | None = None

    # -- the orchestrator -------------------------------------------------------------------------

    def begin(self, word: str = "run", *program: str) -> subprocess.Popen[bytes]:
        """Start the orchestrator, as on a login node; `word` is `run` or `resume`, `program` what does it."""
        with (self.place / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *(program or (__file__,)), str(self.job), word],
                env=self.cluster.env, cwd=self.place, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        return self.process

    def submit(self, *options: str) -> str:
        """Have a batch script of the user's own run it; return the job's number."""
        script = self.place / "batch"
        script.write_text(f"#!/bin/bash\nexec {sys.executable} {__file__} {self.job} run\n")
        words = (
            "sbatch",
            "--parsable",
            "-o",
            str(self.place / "output"),
            "--open-mode=append",
            "--no-kill",
            *options,
        )
        return self.cluster.run(*words, str(script)).strip()

    def finish_soon(self) -> None:
        """Have ranks end at a step that is to come, all at the same one."""
        last = max(each.step for each in self.told("step")) + 30
        (self.place / "finish.tmp").write_text(str(last))
        (self.place / "finish.tmp").rename(self.place / "finish")

    def end(self, code: int = 0) -> None:
        """Wait for the orchestrator's end."""
        assert self.process is not None
        assert self.process.wait(DEADLINE_S) == code, self.output()

    def kill(self) -> None:
        """End the orchestrator by SIGKILL, with all its helpers."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE_S)

    def close(self) -> None:
        """End what a failed test has left."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(DEADLINE_S)

    # -- what is told -----------------------------------------------------------------------------

    def told(self, *words: str) -> list[Told]:
        """Return what ranks have told, in its order."""
        path = self.place / "told"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [line.split() for line in lines]
        every = [
            Told(float(at), word, life, int(rank), int(step), node, int(pid))
            for at, word, life, rank, step, node, pid in found
        ]
        return [each for each in every if not words or each.word in words]

    def reach(self, step: int, life: str | None = None) -> None:
        """Wait until some rank has taken a step."""

        def has() -> bool:
            return any(each.step >= step and life in (None, each.life) for each in self.told("step"))

        self.until(has)

    def until(self, holds: Callable[[], bool], limit_s: float = DEADLINE_S) -> None:
        """Wait until it holds, while the orchestrator lives."""
        deadline = time.monotonic() + limit_s
        while not holds():
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.05)

    def output(self) -> str:
        """What the orchestrator has printed."""
        path = self.place / "output"
        return path.read_text(errors="replace")[-6000:] if path.exists() else ""

    def run_id(self) -> str:
        """Return the run's id, once it has one."""
        self.until(lambda: bool(list((self.place / "model" / ".prefect-ft").glob("*/run.json"))))
        return next((self.place / "model" / ".prefect-ft").glob("*/run.json")).parent.name

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Return the journal's lines of a type."""
        (journal,) = (self.place / "model").glob("*/journal.jsonl")
        every = [json.loads(line) for line in journal.read_text().splitlines()]
        return [each for each in every if each.get("type") == kind]

    def incidents(self) -> list[tuple[str, str]]:
        """Return each incident's kind with the rule that it was decided by."""
        kinds = [each["kind"] for each in self.lines("incident")]
        return list(zip(kinds, [each["rule"] for each in self.lines("decision")], strict=False))

    def is_doubled(self) -> bool:
        """Whether a rank was started while another process of it lived."""
        return bool(self.told("doubled"))

    def lives(self) -> int:
        """How many attempts have taken a step."""
        return len({each.life for each in self.told("step")})

    def is_resumed_where_asked(self) -> bool:
        """Whether each attempt that follows a checkpoint that was asked for begins with the step after it."""
        asked = self.told("asked")
        firsts: dict[str, int] = {}
        for each in self.told("step"):
            firsts.setdefault(each.life, each.step)
        lives = list(firsts)
        return bool(asked) and all(
            firsts[lives[lives.index(each.life) + 1]] == each.step + 1
            for each in asked
            if each.life != lives[-1]
        )

    def lost_steps(self) -> list[int]:
        """Return, for each attempt after the first, how many steps had to be taken again."""
        lives: dict[str, list[int]] = {}
        for each in self.told("step"):
            lives.setdefault(each.life, []).append(each.step)
        every = list(lives.values())
        return [max(before) - min(after) + 1 for before, after in pairwise(every)]


def main(path: Path, word: str) -> int:
    """Execute a run to its end; return the exit code of `prefect-ft`."""
    from prefect_ft.cli.foreground import watching
    from prefect_ft.config import load_job
    from prefect_ft.errors import NotStartedError, PrefectFTError
    from prefect_ft.orchestrate.entering import enter
    from prefect_ft.orchestrate.executing import execute
    from prefect_ft.orchestrate.live import Live
    from prefect_ft.orchestrate.run import held
    from prefect_ft.supervisor import HandedOverError

    job = load_job(path)
    with watching(job):
        try:
            entered = enter(job, "resume" if word == "resume" else "fresh")
            with held(entered.holding, entered.job) as (_, stop):
                last = execute(entered, stop, Live())
        except HandedOverError as exc:
            sys.stderr.write(f"handed over to the next allocation: {exc}\n")
            return 0
        except PrefectFTError as exc:
            sys.stderr.write(f"error: {exc}\n")
            return 3 if isinstance(exc, NotStartedError) else 1
    sys.stderr.write(f"{last.status}: {last.reason}\n")
    return {"completed": 0, "cancelled": 3}.get(last.status, 1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
