"""nanoGPT's own train.py on two nodes of a real Slurm, whatever Slurm or a node does to it.

It saves weights and optimizer, not where it was in its data: what follows a restart differs from an undisturbed run.
So each result is held, bit by bit, against torchrun alone, stopped at the same steps and started again with as many
ranks.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import foreign
import psutil
import pytest
from disturbed import ABORTS
from foreign_trainers import OUTSIDE, SCRIPTS, TRAINERS
from ports import free_port
from slurm_runs import Run

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

(NANOGPT,) = (trainer for trainer in TRAINERS if trainer.name == "nanogpt")
SAVE_EVERY, STEPS = 50, 300
LIMIT_S = 400.0
ENV = {"PYTHONPATH": str(OUTSIDE), "OMP_NUM_THREADS": "1", **NANOGPT.env}
ROOT = Path(__file__).parents[2]
PREPARE = """
import runpy, sys, types
sys.modules["requests"] = types.ModuleType("requests")  # of no use where the text is there
runpy.run_path("data/shakespeare_char/prepare.py")
"""


@dataclass(frozen=True)
class Attempt:
    """What the ranks of an attempt printed: how many they were, and the first and last iteration that was printed."""

    ranks: int
    first: int
    last: int


def prepared(work: Path, python: Path) -> None:
    """Lay out train.py as it wants to be started, with the text prepared by its own program."""
    source, file = NANOGPT.source or ("", "")
    clone = foreign.program(file, source).parent
    data = work / "data" / "shakespeare_char"
    data.mkdir(parents=True)
    for name in ("train.py", "model.py", "configurator.py"):
        shutil.copy(clone / name, work)
    shutil.copy(clone / "data" / "shakespeare_char" / "prepare.py", data)
    (data / "input.txt").write_text(
        "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    )
    subprocess.run([python, "-c", PREPARE], cwd=work, check=True, capture_output=True)


def arguments(steps: int, stop_at: int | None = None) -> list[str]:
    """Return the command after `torchrun`; `stop_at`: end there, and train as if it went on."""
    options = {
        "dataset": "shakespeare_char", "gradient_accumulation_steps": 2, "eval_interval": SAVE_EVERY,
        "lr_decay_iters": steps, "max_iters": steps if stop_at is None else stop_at,
    }  # fmt: skip
    given = [f"--{name}={value}" for name, value in options.items()]
    return ["train.py", str(SCRIPTS / "nanogpt_config.py"), *given]


class NanoGPT(Run):
    """A run of it by `prefect-ft run`, as from a login node."""

    def __init__(
        self, cluster: Any, place: Path, steps: int, infrastructure: dict[str, Any], **checkpoints: Any
    ) -> None:
        self.python, self.steps, self.work = NANOGPT.interpreter(), steps, place / "work"
        prepared(self.work, self.python)
        launcher = [str(self.python), "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
        phase = {
            "name": "train",
            "command": [*launcher, *arguments(steps)],
            "cwd": str(self.work),
            "rewrite_launcher": True,
            "checkpoints": {"path": str(self.work / "out"), "keep_copies": True, **checkpoints},
        }
        fields = {"env": ENV, "phases": [phase], "sample_period_s": 0.5}
        super().__init__(cluster, place, infrastructure=infrastructure, **fields)

    def begin(self, word: str = "run", *program: str) -> subprocess.Popen[bytes]:
        from prefect.settings import PREFECT_API_URL

        with (self.place / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "prefect_ft.cli", word, str(self.job), *program],
                env={**self.cluster.env, "PREFECT_API_URL": str(PREFECT_API_URL.value())},
                cwd=self.place, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        return self.process

    def log(self) -> str:
        paths = (self.place / "model").glob("*_restartable/run.log")
        return "".join(path.read_text(errors="replace") for path in paths)

    def wait_for(self, pattern: str) -> None:
        self.until(lambda: re.search(pattern, self.log()) is not None, LIMIT_S)

    def until(self, holds: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        def is_over() -> bool:
            assert self.process is not None
            return holds() or self.process.poll() is not None

        super().until(is_over, limit_s)
        assert holds(), f"{self.output()}\n{self.log()[-3000:]}"

    def end(self, code: int = 0) -> None:
        assert self.process is not None
        assert self.process.wait(LIMIT_S) == code, f"{self.output()}\n{self.log()[-3000:]}"

    def processes(self) -> dict[int, psutil.Process]:
        """Return the ranks that live."""
        found = {}
        for each in psutil.process_iter(["cmdline", "cwd", "environ"]):
            if each.info["cwd"] == str(self.work) and "train.py" in (each.info["cmdline"] or []):
                found[int(each.info["environ"]["RANK"])] = each
        return found

    def attempts(self) -> list[Attempt]:
        """Return the attempts that trained, as their ranks' output shows them."""
        ranks: dict[int, set[str]] = {}
        steps: dict[int, list[int]] = {}
        for line in self.log().splitlines():
            if found := re.match(r"\[a(\d+) w\d+ r(\d+)\] (?:.*?(?:step|iter) (\d+): )?", line):
                ranks.setdefault(int(found[1]), set()).add(found[2])
                if found[3]:
                    steps.setdefault(int(found[1]), []).append(int(found[3]))
        return [Attempt(len(ranks[each]), steps[each][0], steps[each][-1]) for each in sorted(steps)]

    def lost(self) -> list[int]:
        """Return how many iterations each attempt but the first had to take again; what is printed tells to ten."""
        return [before.last - after.first for before, after in pairwise(self.attempts())]

    def saves_before_hand_overs(self) -> list[tuple[float, list[float]]]:
        """Return when each attempt that was handed over ended, and when its checkpoints were verified."""
        ends = {each["attempt"]: each["ended_t"] for each in self.lines("hand-over")}
        saves = self.lines("checkpoint")
        return [(end, [each["t"] for each in saves if each["attempt"] == at]) for at, end in ends.items()]

    def losses(self) -> dict[int, str]:
        """Return the loss of each evaluation; the last one that was made counts."""
        found = re.findall(r"\] step (\d+): train loss [\d.]+, val loss ([\d.]+)", self.log())
        return {int(step): loss for step, loss in found}

    def result(self, work: Path | None = None) -> dict[str, Any]:
        words = [self.python, SCRIPTS / "result.py", "nanogpt", work or self.work]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def by_hand(self, attempts: list[Attempt]) -> dict[str, Any]:
        """Train by torchrun alone, in as many pieces and with as many ranks; return the result."""
        work = self.place / f"by-hand-{len(attempts)}"
        shutil.copytree(self.work, work, ignore=shutil.ignore_patterns("out"))  # with the same data
        for attempt, after in zip(attempts, [*attempts[1:], None], strict=True):
            if after is not None and after.first == attempt.first:
                continue  # of it nothing was left
            begun = {"PREFECT_FT_RESUME_FROM": "out/ckpt.pt"} if attempt.first else {}
            options = [f"--nproc-per-node={attempt.ranks}", f"--master-port={free_port()}"]
            words = arguments(self.steps, after.first if after else None)
            done = subprocess.run(
                ["nice", "-n", "5", self.python, "-m", "torch.distributed.run", *options, *words],
                cwd=work, env={**os.environ, **ENV, **begun}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0 or ABORTS in done.stderr, done.stderr[-3000:]  # after its last step
        return self.result(work)


Begin = Callable[..., NanoGPT]


@pytest.fixture
def begin(slurm_nodes: Any, tmp_path: Path, prefect_server: None) -> Iterator[Begin]:
    runs: list[NanoGPT] = []

    def make(steps: int = STEPS, infrastructure: dict[str, Any] | None = None, **checkpoints: Any) -> NanoGPT:
        runs.append(NanoGPT(slurm_nodes, tmp_path / "run", steps, infrastructure or {}, **checkpoints))
        runs[-1].begin()
        return runs[-1]

    yield make
    for run in runs:
        run.close()


_undisturbed: dict[int, dict[str, Any]] = {}
"""Results, by the number of steps."""


def undisturbed(run: NanoGPT) -> dict[str, Any]:
    """Return the result of a training to which nothing happens."""
    if run.steps not in _undisturbed:
        _undisturbed[run.steps] = run.by_hand([Attempt(2, 0, run.steps)])
    return _undisturbed[run.steps]


def finish(run: NanoGPT, case: str) -> list[Attempt]:
    """Wait for the end, and hold the result against torchrun by hand; return the attempts."""
    began = time.monotonic()
    run.end()
    assert run.processes() == {}
    waited_s = time.monotonic() - began
    attempts, result = run.attempts(), run.result()
    cell = {
        "case": case, "attempts": [vars(each) for each in attempts], "lost": run.lost(), "incidents": run.incidents(),
        "result": result, "losses": run.losses(), "waited_s": round(waited_s, 1),
    }  # fmt: skip
    try:
        assert result["steps"] == run.steps
        assert all(each.first > 0 for each in attempts[1:]), attempts
        cell["by_hand"] = run.by_hand(attempts)
        assert cell["by_hand"] == result
        if run.steps == STEPS:  # the others take too long
            cell["undisturbed"] = undisturbed(run)
            assert abs(cell["undisturbed"]["metric"] - result["metric"]) < 0.2
    finally:
        if path := os.environ.get("PREFECT_FT_SLURM_CELLS"):
            with Path(path).open("a") as file:
                file.write(json.dumps(cell) + "\n")
    Run.until(run, lambda: {*run.cluster.jobs().values()} <= {"COMPLETING"})
    return attempts


def test_a_rank_that_is_killed(begin: Begin) -> None:
    run = begin()
    run.wait_for(r"iter 130:")
    run.processes()[1].kill()
    attempts = finish(run, "rank killed")
    assert [each.ranks for each in attempts] == [2, 2]
    assert run.incidents() == [("exit", "transient"), ("completed", "completed")]
    assert max(run.lost()) <= SAVE_EVERY


def test_a_lost_node_with_a_spare(begin: Begin) -> None:
    run = begin(infrastructure={"spares": 1})
    run.wait_for(r"iter 130:")
    run.cluster.lose("n1")
    attempts = finish(run, "node lost, spare")
    assert [each.ranks for each in attempts] == [2, 2]
    assert run.incidents() == [("system_lost", "node-lost"), ("completed", "completed")]
    assert max(run.lost()) <= SAVE_EVERY


def test_a_lost_node_that_comes_back(begin: Begin) -> None:
    run = begin(3000, infrastructure={"grows": True})
    run.wait_for(r"iter 130:")
    run.cluster.lose("n1")
    attempts = finish(run, "node lost, grows")
    assert [each.ranks for each in attempts] == [2, 1, 2]
    kinds = ["system_lost", "handed_over", "completed"]
    assert [kind for kind, _ in run.incidents()] == kinds
    assert max(run.lost()) <= SAVE_EVERY


def test_a_time_limit(begin: Begin) -> None:
    """A trainer that cannot be asked saves at its own time: `on_demand` waits for that, as long as `grace_s`."""
    run = begin(4000, infrastructure={"time": "1", "reserve_s": 10}, on_demand={"grace_s": 15})
    attempts = finish(run, "time limit, on_demand")
    assert len(attempts) > 1
    assert {kind for kind, _ in run.incidents()} == {"handed_over", "completed"}
    assert max(run.lost()) <= SAVE_EVERY
    for end_t, (*_, before_t, saved_t) in run.saves_before_hand_overs():
        assert 0 <= end_t - saved_t < (saved_t - before_t) / 4, "the next checkpoint was waited for"


def test_a_preemption(begin: Begin) -> None:
    run = begin()
    run.wait_for(r"iter 130:")
    run.cluster.run("sbatch", "-p", "high", "-N4", "-o", "/dev/null", "--wrap", "sleep 3")
    attempts = finish(run, "preemption")
    assert [each.ranks for each in attempts] == [2, 2]
    assert [kind for kind, _ in run.incidents()] == ["preempted", "handed_over", "completed"]
    assert max(run.lost()) <= SAVE_EVERY
