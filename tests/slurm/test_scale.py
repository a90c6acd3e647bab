"""Many nodes: a real slurmctld and a job of its own, and a fake of srun that starts all node servers on this machine.

PREFECT_FT_NODES=N has N nodes in the long test, instead of 500.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_srun
import pytest
import slurm_runs
import yaml

MANY = int(os.environ.get("PREFECT_FT_NODES", "500"))
FEW = 12

pytestmark = pytest.mark.timeout(900)

RANK = """
echo $PREFECT_FT_ATTEMPT $RANK $PREFECT_FT_SYSTEM >>told
test $PREFECT_FT_ATTEMPT.$RANK = 1.3 && { read word <fail; exit 1; }
test -e finish || read word <wait
exit 0
"""
"""Rank 3 fails once when it is told to; all others wait, without a process that turns, until the end."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a run of so many nodes took: seconds to its parts since it was started, and requests to slurmctld."""

    nodes: int
    rpcs: dict[str, int]
    seconds: dict[str, float]


class Scale:
    """A run in a real job's environment whose nodes are addresses of this machine."""

    def __init__(self, cluster: Any, place: Path, nodes: int) -> None:
        self._cluster, self._place, self._nodes = cluster, place, nodes
        place.mkdir()
        self._job = cluster.run(
            "sbatch", "--parsable", "-N1", "--no-kill", "-o", "/dev/null", "--wrap", "exec sleep 3600"
        ).strip()
        for name in ("wait", "fail"):
            os.mkfifo(place / name)
        document = {
            "name": "scale",
            "model_dir": str(place / "model"),
            "stop_grace_s": 0,
            "infrastructure": {"type": "slurm", "python": sys.executable},
            "autorestart": {"max_num_restarts": 3},
            "phases": [{"name": "train", "mode": "eval", "command": ["sh", "-c", RANK]}],
        }
        (place / "job.yaml").write_text(yaml.safe_dump(document))
        self._process: subprocess.Popen[bytes] | None = None

    def shown(self) -> Shown:
        """Run it, with one rank that fails, to its end."""
        self._until(lambda: "RUNNING" in self._cluster.jobs().values())
        self._cluster.run("sdiag", "-r")
        times: dict[str, float] = {}
        began = time.monotonic()

        def passed(what: str, holds: Callable[[], bool]) -> None:
            self._until(holds)
            times[what] = round(time.monotonic() - began, 1)

        self._begin()
        passed("node servers", lambda: len(self._servers()) == self._nodes)
        passed("first rank", lambda: len(self._told(1)) > 0)
        passed("all ranks", lambda: len(self._told(1)) == self._nodes)
        with (self._place / "fail").open("w"):
            times["a failure"] = round(time.monotonic() - began, 1)
        passed("all ranks again", lambda: len(self._told(2)) == self._nodes)
        assert len({node for _, node in self._told(2)}) == self._nodes
        self._finish()
        times["end"] = round(time.monotonic() - began, 1)
        rpcs = _rpcs(self._cluster.run("sdiag"))
        self._until(lambda: not fake_srun.is_up(self._place / "srun"))
        return Shown(nodes=self._nodes, rpcs=rpcs, seconds=times)

    def _begin(self) -> None:
        count = [self._nodes // 250, self._nodes % 250]
        parts = [f"127.20.{number + 1}.[1-250]" for number in range(count[0])]
        parts += [f"127.20.{count[0] + 1}.[1-{count[1]}]"] if count[1] else []
        env = {
            **self._cluster.env,
            "PATH": f"{fake_srun.on_path(self._place / 'srun')}:{os.environ['PATH']}",
            "SLURM_JOB_ID": self._job,
            "SLURM_JOB_NODELIST": ",".join(parts),
            "SLURM_JOB_NUM_NODES": str(self._nodes),
        }
        with (self._place / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, slurm_runs.__file__, str(self._place / "job.yaml"), "run"],
                env=env, cwd=self._place, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def _finish(self) -> None:
        """Let all ranks end."""
        (self._place / "finish").touch()
        assert self._process is not None
        deadline = time.monotonic() + 300
        while self._process.poll() is None:
            assert time.monotonic() < deadline, self._output()
            with suppress(OSError):  # nobody waits
                os.close(os.open(self._place / "wait", os.O_WRONLY | os.O_NONBLOCK))
            time.sleep(0.1)
        assert self._process.returncode == 0, self._output()

    def _told(self, attempt: int) -> set[tuple[str, str]]:
        path = self._place / "told"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return {(rank, node) for number, rank, node in lines if number == str(attempt)}

    def _servers(self) -> list[Path]:
        return [*self._place.glob(f"model/.prefect-ft/*/slurm/slurm-{self._job}/127.*.json")]

    def _until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not holds():
            assert time.monotonic() < deadline, self._output()
            assert self._process is None or not self._process.poll(), self._output()
            time.sleep(0.05)

    def _output(self) -> str:
        path = self._place / "output"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def close(self) -> None:
        """End what a failed test has left."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        fake_srun.end(self._place / "srun")


def _rpcs(said: str) -> dict[str, int]:
    """Read sdiag: how many requests of each type slurmctld has had, less those of its own nodes and of sdiag."""
    (by_type,) = re.findall(r"Remote Procedure Call statistics by message type\n(.*?)\n\n", said, re.DOTALL)
    counted = dict(re.findall(r"^\s+(\w+)\s+\(\s*\d+\) count:(\d+)", by_type, re.MULTILINE))
    own = ("MESSAGE_NODE_REGISTRATION_STATUS", "REQUEST_STATS_INFO", "REQUEST_PING")
    return {name: int(count) for name, count in counted.items() if name not in own}


@pytest.fixture
def scales(slurm_nodes: Any, tmp_path: Path) -> Iterator[Any]:
    """Makes runs, and ends what is left of them."""
    made: list[Scale] = []

    def make(nodes: int) -> Scale:
        made.append(Scale(slurm_nodes, tmp_path / f"of-{nodes}", nodes))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_dozen_nodes_cost_slurm_a_handful_of_questions(scales: Any) -> None:
    shown = scales(FEW).shown()
    assert sum(shown.rpcs.values()) <= 10, shown


@pytest.mark.long
def test_many_nodes_cost_slurm_no_more_than_a_dozen(scales: Any) -> None:
    few = scales(FEW).shown()
    many = scales(MANY).shown()
    sys.stderr.write(f"{few}\n{many}\n")
    assert many.rpcs == few.rpcs
    assert many.seconds["all ranks again"] - many.seconds["a failure"] < 15
