"""The tests' own Slurm: what is done to its nodes reaches their jobs, and nothing is left of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BATCH = (
    "#!/bin/sh\nsrun --overlap --no-kill -N{nodes} -n{nodes} -o {out}.%t sh -c 'echo $$; exec sleep 600'\n"
)


def test_a_lost_node_takes_what_ran_there_and_nothing_else(slurm_nodes: Any, tmp_path: Path) -> None:
    job = _submit(slurm_nodes, tmp_path, nodes=2)
    pids = [_pid(tmp_path / f"out.{number}") for number in (0, 1)]
    slurm_nodes.lose("n1")
    assert [_lives(pid) for pid in pids] == [True, False]
    assert slurm_nodes.jobs() == {job: "RUNNING"}


def test_a_higher_partition_preempts(slurm_nodes: Any, tmp_path: Path) -> None:
    job = _submit(slurm_nodes, tmp_path, nodes=4)
    _pid(tmp_path / "out.0")
    slurm_nodes.run("sbatch", "-p", "high", "-N4", "-o", "/dev/null", "--wrap", "sleep 600")
    _until(lambda: slurm_nodes.jobs().get(job, "gone") == "gone")
    _until(lambda: slurm_nodes.recorded(job) == "PREEMPTED")


@pytest.mark.long
def test_jobs_go_on_while_the_controller_is_away(slurm_nodes: Any, tmp_path: Path) -> None:
    job = _submit(slurm_nodes, tmp_path, nodes=1)
    pid = _pid(tmp_path / "out.0")
    with slurm_nodes.controller_away():
        assert _lives(pid)
    assert slurm_nodes.jobs() == {job: "RUNNING"}
    assert _lives(pid)


def test_nothing_is_left_of_a_cluster(slurm_cluster: Any) -> None:
    import slurm

    with slurm.slurm(nodes=1) as cluster:
        cluster.run("sbatch", "-o", "/dev/null", "--wrap", "sleep 601")
        _until(lambda: "RUNNING" in cluster.jobs().values())
        place = cluster.directory
    assert not place.exists()
    _until(lambda: not any(_speaks_of(int(pid), place) for pid in os.listdir("/proc") if pid.isdigit()))


def _submit(cluster: Any, place: Path, nodes: int) -> str:
    script = place / "script"
    script.write_text(BATCH.format(nodes=nodes, out=place / "out"))
    words = (
        "sbatch",
        "--parsable",
        "--no-kill",
        "--no-requeue",
        f"-N{nodes}",
        "-o",
        "/dev/null",
        str(script),
    )
    return str(cluster.run(*words)).strip()


def _pid(path: Path) -> int:
    _until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def _speaks_of(pid: int, place: Path) -> bool:
    if pid == os.getpid():
        return False
    try:
        told = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
    except OSError:
        return False
    return any(str(place).encode() in each for each in told)


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        if time.monotonic() > deadline:
            pytest.fail("it did not happen in a minute")
        time.sleep(0.05)
