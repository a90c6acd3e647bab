"""Whole runs on a real Slurm: nodes are lost, daemons die, orchestrators come back, allocations end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm
from slurm_runs import Run

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def run(slurm_nodes: Any, tmp_path: Path) -> Iterator[Run]:
    """A run of two nodes and a spare, that has not begun."""
    made = Run(slurm_nodes, tmp_path / "run", infrastructure={"nodes": 2, "spares": 1})
    yield made
    made.close()


def node_of(run: Run, rank: int) -> str:
    """Return the node on which a rank has taken its last step."""
    return [each.node for each in run.told("step") if each.rank == rank][-1]


def told_of(run: Run, state: str, field: str) -> list[str]:
    """Return the nodes in a field of the run's job in a state."""
    (job,) = (each for each, known in run.cluster.jobs().items() if known == state)
    told = run.cluster.run("scontrol", "show", "job", "-o", job)
    (nodes,) = (word.partition("=")[2] for word in told.split() if word.startswith(f"{field}="))
    return [] if nodes == "(null)" else run.cluster.run("scontrol", "show", "hostnames", nodes).split()


def finish(run: Run) -> None:
    """Have it end, and nothing of it be left in the queue."""
    run.end()
    run.until(lambda: set(run.cluster.jobs().values()) <= {"COMPLETING"})
    assert not run.is_doubled()


@pytest.mark.long
def test_a_lost_node_is_done_without_long_before_slurm_says_so(run: Run) -> None:
    run.begin()
    run.reach(12)
    lost = node_of(run, 1)
    run.cluster.lose(lost)
    began = time.monotonic()
    run.until(lambda: any(each.node not in (lost, node_of(run, 0)) for each in run.told("begin")))
    assert time.monotonic() - began < 30
    assert run.cluster.states()[lost] != "down*"
    run.until(lambda: told_of(run, "PENDING", "ExcNodeList") == [lost])
    run.finish_soon()
    finish(run)
    assert run.incidents()[0] == ("system_lost", "node-lost")


@pytest.mark.long
@pytest.mark.usefixtures("slurm_nodes")
def test_a_lost_node_is_released_where_that_is_wanted(tmp_path: Path) -> None:
    """In a cluster of its own: Slurm 22.05 does not get over it."""
    given = {"nodes": 2, "spares": 1, "gives_back": True}
    with slurm.slurm(nodes=4) as cluster:
        run = Run(cluster, tmp_path / "run", infrastructure=given)
        try:
            run.begin()
            run.reach(12)
            lost = node_of(run, 1)
            cluster.lose(lost)
            run.until(lambda: any(each.life == "train-2" for each in run.told("step")))
            run.until(lambda: lost not in told_of(run, "RUNNING", "NodeList"))
            assert len(told_of(run, "RUNNING", "NodeList")) == 2
            run.finish_soon()
            finish(run)
        finally:
            run.close()


@pytest.mark.long
def test_the_batch_host_may_be_lost(run: Run) -> None:
    run.begin()
    run.reach(12)
    (lost,) = {each.node for each in run.told("step") if each.rank == 0}
    assert lost == run.cluster.nodes[0]
    run.cluster.lose(lost)
    run.until(lambda: any(each.life == "train-2" for each in run.told("step")))
    run.finish_soon()
    finish(run)
    assert run.incidents()[0] == ("system_lost", "node-lost")


@pytest.mark.long
@pytest.mark.parametrize("program", ["slurmd", "slurmstepd"])
def test_a_daemon_of_slurm_that_dies_costs_no_attempt(run: Run, program: str) -> None:
    run.begin()
    run.reach(12)
    run.cluster.kill(program, node_of(run, 1))
    run.reach(max(each.step for each in run.told("step")) + 20)
    run.finish_soon()
    finish(run)
    assert run.incidents() == [("completed", "completed")]


@pytest.mark.long
def test_a_node_is_lost_while_the_controller_is_away(run: Run) -> None:
    run.begin()
    run.reach(12)
    with run.cluster.controller_away():
        run.cluster.lose(node_of(run, 1))
        run.until(lambda: any(each.life == "train-2" for each in run.told("step")))
    run.finish_soon()
    finish(run)
    assert run.incidents()[0] == ("system_lost", "node-lost")


@pytest.mark.long
def test_training_goes_on_without_its_orchestrator(run: Run) -> None:
    run.begin()
    run.reach(12)
    run.kill()
    run.reach(max(each.step for each in run.told("step")) + 20)
    run.begin("resume")
    run.until(lambda: "back after" in run.output())
    run.finish_soon()
    finish(run)
    assert run.incidents() == [("completed", "completed")]


@pytest.mark.long
def test_a_batch_step_that_is_killed_ends_the_allocation_and_not_the_run(run: Run) -> None:
    run.begin()
    run.reach(12)
    (job,) = (each for each, state in run.cluster.jobs().items() if state == "RUNNING")
    run.cluster.run("scancel", "--batch", "--signal=KILL", job)
    run.until(lambda: any(each.life == "train-2" for each in run.told("step")))
    run.finish_soon()
    finish(run)


def test_a_preemption_is_handed_over_with_a_checkpoint_of_its_own(slurm_nodes: Any, tmp_path: Path) -> None:
    """Slurm signals ranks, agents and node servers all at once, twice; the ranks save all the same, then end."""
    run = Run(slurm_nodes, tmp_path / "run", save_every=1_000_000, infrastructure={"nodes": 2, "spares": 1})
    try:
        run.begin()
        run.reach(12)
        other = run.cluster.run(
            "sbatch", "--parsable", "-p", "high", "-N4", "-o", "/dev/null", "--wrap", "sleep 3"
        ).strip()
        run.until(lambda: any(each.life == "train-2" for each in run.told("step")))
        run.finish_soon()
        finish(run)
    finally:
        run.close()
    assert other not in run.cluster.jobs()
    assert run.incidents()[0][0] in ("preempted", "handed_over")
    (asked,) = {each.step for each in run.told("asked") if each.life == "train-1"}
    assert min(each.step for each in run.told("step") if each.life == "train-2") == asked + 1
    last = max(each.step for each in run.told("step") if each.life == "train-1")
    assert last - asked < 100, "the ranks went on until they were killed"


def cancel(run: Run) -> None:
    """Cancel all jobs of the run, as its user would, and wait until the run has ended so."""
    name = f"--name={run.place.name}-{run.run_id()}"
    run.cluster.run("scancel", name)
    run.end(3)
    run.until(lambda: not run.cluster.run("squeue", "-h", name, "-t", "PENDING,RUNNING"))


@pytest.mark.long
def test_cancelled_in_the_queue(run: Run) -> None:
    other = run.cluster.run("sbatch", "--parsable", "-N4", "-o", "/dev/null", "--wrap", "sleep 600").strip()
    run.until(lambda: "RUNNING" in run.cluster.jobs().values())
    run.begin()
    run.until(lambda: "PENDING" in run.cluster.jobs().values())
    run.cluster.run("scancel", "--state=PENDING", "--me")
    run.end(3)
    assert "CANCELLED" in run.output()
    assert run.cluster.jobs() == {other: "RUNNING"}


@pytest.mark.long
def test_cancelled_while_its_nodes_begin(run: Run) -> None:
    run.begin()
    run.until(lambda: "RUNNING" in run.cluster.jobs().values())
    cancel(run)
    assert not run.is_doubled()


def test_cancelled_in_training(run: Run) -> None:
    run.begin()
    run.reach(12)
    cancel(run)
    assert run.incidents() == [("cancelled", "cancelled")]
    assert run.told("asked"), "there was time for a checkpoint"


@pytest.mark.long
def test_cancelled_while_it_is_handed_over(slurm_nodes: Any, tmp_path: Path) -> None:
    given = {"nodes": 2, "time": "1", "reserve_s": 20}
    run = Run(slurm_nodes, tmp_path / "run", save_every=1_000_000, infrastructure=given)
    try:
        run.begin()
        run.until(lambda: bool(run.told("asked")))
        cancel(run)
    finally:
        run.close()
    assert run.lives() == 1


@pytest.mark.long
def test_cancelled_while_it_waits_for_its_next_allocation(slurm_nodes: Any, tmp_path: Path) -> None:
    given = {"nodes": 2, "time": "1", "reserve_s": 20}
    run = Run(slurm_nodes, tmp_path / "run", save_every=1_000_000, infrastructure=given)
    try:
        run.begin()
        run.reach(12)
        run.cluster.run("sbatch", "-N4", "-p", "high", "-o", "/dev/null", "--wrap", "sleep 600")
        run.until(lambda: bool(run.told("asked")) and [*run.cluster.jobs().values()].count("RUNNING") == 1)
        cancel(run)
    finally:
        run.close()
    assert run.lives() == 1


@pytest.mark.long
def test_in_a_batch_script_of_the_users_own(slurm_nodes: Any, tmp_path: Path) -> None:
    run = Run(slurm_nodes, tmp_path / "run", infrastructure={"spares": 1}, last=20)
    job = run.submit("-N3", "-t", "60")
    run.until(lambda: "completed" in run.output())
    run.until(lambda: set(run.cluster.jobs().values()) <= {"COMPLETING"})
    assert not run.is_doubled()
    assert {each.node for each in run.told("step")} == {"n0", "n1"}
    run.until(lambda: run.cluster.recorded(job) == "COMPLETED")
