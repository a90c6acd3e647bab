"""A node is lost: until the first training step after it, with a SlurmdTimeout of 300 s.

Beside us the two ways that Slurm's users have: `sbatch --requeue`, where Slurm queues the job again when it takes the
node for lost, and submitit, which does the same with a function that can be resumed. All train the same script on two
nodes of three, in one cluster, at the same time; each loses the node that is not its first, as by its power: nothing at
its address answers any more. The ranks wait for each other at every step, as collectives do, and save at every fifth.

    python -m benchmarks.slurm [--json FILE] [--quick] [--no-peers] [--venv DIR]

It starts a cluster of its own (tests/support/slurm.py), as root. The peers take 9 minutes, whatever is asked for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import OURS, Results, finish, options, row

CASE = "node lost→next step"
GOAL_S, GOAL_TIMES = 15.0, 20.0
SUBMITIT = "submitit==1.5.4"
NODES, SPARES = 2, 1
CLUSTER = [sys.executable, str(Path(__file__).parent.parent / "tests" / "support" / "slurm.py")]
PEERS_S = 900.0
"""How long is waited for a peer's next step."""

SCRIPT = """
import os, sys, time

def train(place):
    known = os.environ
    rank = int(known.get("RANK", known.get("SLURM_PROCID", 0)))
    world = int(known.get("WORLD_SIZE", known.get("SLURM_NTASKS", 1)))
    life = known.get("PREFECT_FT_ATTEMPT", known.get("SLURM_RESTART_COUNT", "0"))
    saved = [int(name[5:-4]) for name in os.listdir(place + "/checkpoints") if name.startswith("step-")]
    step = max(saved, default=0)
    while not os.path.exists(place + "/stop"):
        step += 1
        with open(f"{place}/at-{life}-{rank}", "w") as file:
            file.write(str(step).zfill(9))
        for other in range(world):
            while not reached(f"{place}/at-{life}-{other}", step):
                if os.path.exists(place + "/stop"):
                    return
                time.sleep(0.005)
        node = known.get("PREFECT_FT_SYSTEM") or known.get("SLURMD_NODENAME", "?")
        with open(place + "/steps", "a") as file:
            file.write(f"{time.monotonic()} {life} {rank} {step} {node}\\n")
        if rank == 0 and step % 5 == 0:
            import zipfile
            with zipfile.ZipFile(f"{place}/tmp-{life}", "w") as file:
                file.writestr("weights", "x" * 1000)
            os.replace(f"{place}/tmp-{life}", f"{place}/checkpoints/step-{step}.npz")
        time.sleep(0.1)

def reached(path, step):
    try:
        with open(path) as file:
            return int(file.read() or 0) >= step
    except FileNotFoundError:
        return False

if __name__ == "__main__":
    train(sys.argv[1])
"""

BATCH = """#!/bin/sh
srun python3 {place}/script.py {place}
"""

SUBMIT = """
import importlib.util, sys
from pathlib import Path
import submitit

class Training(submitit.helpers.Checkpointable):
    def __call__(self, place):
        spec = importlib.util.spec_from_file_location("script", place + "/script.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.train(place)

place, exclude = sys.argv[1:]
executor = submitit.AutoExecutor(folder=place + "/submitit")
executor.update_parameters(nodes={nodes}, tasks_per_node=1, timeout_min=60, slurm_exclude=exclude)
print(executor.submit(Training(), place).job_id)
"""


@dataclass(frozen=True)
class Step:
    """A step of a rank: when it was over, in which life of the job, and on which node."""

    at_s: float
    life: str
    rank: int
    step: int
    node: str


@dataclass(frozen=True)
class Cluster:
    """A cluster of tests/support/slurm.py in a directory."""

    directory: Path
    conf: str

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": self.conf}

    def run(self, *words: str) -> str:
        """Run one of Slurm's commands; return what it prints."""
        return subprocess.run(words, env=self.env, capture_output=True, text=True, check=True).stdout.strip()

    def lose(self, node: str) -> None:
        subprocess.run([*CLUSTER, "lose", str(self.directory), node], check=True)

    def begin(self, node: str) -> None:
        subprocess.run([*CLUSTER, "begin", str(self.directory), node], check=True)


@contextmanager
def cluster_of(nodes: int) -> Iterator[Cluster]:
    """A cluster that lives while entered."""
    with tempfile.TemporaryDirectory(prefix="pft-slurm-") as name:
        place = Path(name) / "c"
        Path(name).chmod(0o755)
        started = subprocess.run(
            [*CLUSTER, "start", str(place), str(nodes)], stdout=subprocess.PIPE, text=True, check=True
        )
        try:
            yield Cluster(place, started.stdout.strip())
        finally:
            subprocess.run([*CLUSTER, "stop", str(place)], check=True)


class Training:
    """The script in a directory of its own, and the steps that it has taken."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "checkpoints").mkdir(parents=True)
        (place / "script.py").write_text(SCRIPT)

    def steps(self) -> list[Step]:
        path = self.place / "steps"
        if not path.exists():
            return []
        told = [line.split() for line in path.read_text().splitlines()]
        return [Step(float(at), life, int(rank), int(step), node) for at, life, rank, step, node in told]

    def lose(self, cluster: Cluster) -> tuple[str, float]:
        """Have the node of the last rank disappear in the middle of training; return it, and when."""
        await_that(lambda: any(each.step >= 12 for each in self.steps()), 180)
        node = next(each.node for each in reversed(self.steps()) if each.rank == NODES - 1)
        at_s = time.monotonic()
        cluster.lose(node)
        return node, at_s

    def resumed(self, since_s: float, limit_s: float) -> float:
        """Wait until every rank has taken a step in another life; return the seconds since the loss until then."""
        lost = {each.life for each in self.steps() if each.at_s <= since_s}

        def later() -> list[Step]:
            return [each for each in self.steps() if each.life not in lost]

        await_that(lambda: len({each.rank for each in later()}) == NODES, limit_s)
        firsts = {rank: min(e.at_s for e in later() if e.rank == rank) for rank in range(NODES)}
        return max(firsts.values()) - since_s

    def stop(self) -> None:
        (self.place / "stop").touch()


def ours(cluster: Cluster, place: Path, exclude: str) -> float:
    """Lose a node of a run; return the seconds until its next step."""
    training = Training(place)
    (place / "job.yaml").write_text(f"""
name: benchmark
model_dir: {place}/model
infrastructure: {{type: slurm, nodes: {NODES}, spares: {SPARES}, exclude: "{exclude}", time: "60"}}
autorestart: {{max_num_restarts: 3}}
phases:
  - name: train
    command: [{sys.executable}, "-I", "-S", {place}/script.py, {place}]
    checkpoints: {{path: {place}/checkpoints}}
""")
    command = [str(Path(sys.executable).parent / "prefect-ft"), "run", str(place / "job.yaml")]
    with (place / "output").open("wb") as output:
        running = subprocess.Popen(command, env=cluster.env, cwd=place, stdout=output, stderr=output)
    try:
        node, at_s = training.lose(cluster)
        taken_s = training.resumed(at_s, 120)
        training.stop()
        assert running.wait(120) == 0, (place / "output").read_text()
        cluster.begin(node)
    finally:
        if running.poll() is None:
            running.terminate()
            running.wait(60)
    return taken_s


def requeued(cluster: Cluster, place: Path, exclude: str, _: Path) -> float:
    """Lose a node of a job that Slurm is to queue again; return the seconds until its next step."""
    training = Training(place)
    (place / "batch").write_text(BATCH.format(place=place))
    words = (
        "sbatch",
        "--parsable",
        "--requeue",
        f"-N{NODES}",
        f"--ntasks={NODES}",
        "-t",
        "60",
        f"--exclude={exclude}",
    )
    job = cluster.run(*words, "--open-mode=append", "-o", str(place / "output"), str(place / "batch"))
    return _peer(cluster, training, job)


def submitted(cluster: Cluster, place: Path, exclude: str, python: Path) -> float:
    """Lose a node of a job of submitit's; return the seconds until its next step."""
    training = Training(place)
    (place / "submit.py").write_text(SUBMIT.replace("{nodes}", str(NODES)))
    job = cluster.run(str(python), str(place / "submit.py"), str(place), exclude)
    return _peer(cluster, training, job)


def _peer(cluster: Cluster, training: Training, job: str) -> float:
    try:
        _, at_s = training.lose(cluster)
        return training.resumed(at_s, PEERS_S)
    finally:
        training.stop()
        cluster.run("scancel", job)


def await_that(holds: Callable[[], bool], limit_s: float) -> None:
    """Wait until it holds."""
    deadline_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"it did not happen in {limit_s:g} s")
        time.sleep(0.05)


def interpreter_of(venv: Path) -> Path:
    """Make the virtual environment in which submitit is, unless it is there; return its interpreter."""
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", SUBMITIT], check=True)
    return python.absolute()


def main() -> None:
    """Have the peers lose their nodes, and us one after the other while they wait."""
    venv: tuple[str, dict[str, Any]] = (
        "--venv",
        {"type": Path, "default": Path(".benchmark-venv"), "help": "where submitit is or is put"},
    )
    arguments = options("What a lost node costs under Slurm, beside what users do.", [venv])
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    repeats, copies = (2, 1) if arguments.quick else (5, 3)
    sides: list[tuple[str, Callable[[Cluster, Path, str, Path], float]]] = []
    if not arguments.no_peers:
        python = interpreter_of(arguments.venv)
        sides = [(name, take) for name, take in PEERS.items() for _ in range(copies)]
    pool = NODES + SPARES
    names = [f"n{number}" for number in range(pool * (len(sides) + 1))]
    values: dict[str, list[float]] = {}
    with cluster_of(len(names)) as cluster, tempfile.TemporaryDirectory(prefix="pft-bench-") as directory:
        lock = threading.Lock()

        def run(number: int, name: str, take: Callable[[Cluster, Path, str, Path], float]) -> None:
            kept = names[pool * (number + 1) : pool * (number + 2)]
            exclude = ",".join(each for each in names if each not in kept)
            taken_s = take(cluster, Path(directory) / f"{name}-{number}".replace(" ", "-"), exclude, python)
            with lock:
                values.setdefault(name, []).append(taken_s)

        with ThreadPoolExecutor(len(sides) or 1) as threads:
            running = [threads.submit(run, number, *side) for number, side in enumerate(sides)]
            exclude = ",".join(names[pool:])
            for number in range(repeats):
                taken_s = ours(cluster, Path(directory) / f"ours-{number}", exclude)
                values.setdefault(OURS, []).append(taken_s)
            for each in running:
                each.result()
    rows = [row(side, CASE, times, unit="s", ranks=NODES) for side, times in values.items()]
    results = Results(
        rows=rows, notes=[f"goal: at most {GOAL_S:g} s, and {GOAL_TIMES:g} times as fast as either"]
    )
    finish(results, arguments)


PEERS: dict[str, Callable[[Cluster, Path, str, Path], float]] = {
    "sbatch --requeue": requeued,
    "submitit": submitted,
}

if __name__ == "__main__":
    main()
