"""A run that has lost a node gets another one by a further job, while it goes on with fewer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm_runs import Run

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def run(slurm_nodes: Any, tmp_path: Path) -> Iterator[Run]:
    found = Run(slurm_nodes, tmp_path / "run", infrastructure={"grows": True})
    try:
        yield found
    finally:
        found.close()


def shrunk(run: Run) -> None:
    """Begin, and lose a node where there is no spare."""
    run.begin()
    run.reach(6)
    run.cluster.lose("n1")
    run.until(lambda: run.incidents() == [("system_lost", "node-lost")])


def nodes_of(run: Run, life: int) -> set[str]:
    return {each.node for each in run.told("step") if each.life == f"train-{life}"}


def is_saved_before_it_moved(run: Run) -> bool:
    """Whether ranks were asked to save, and no more steps were taken again than lie between two checkpoints."""
    return bool(run.told("asked")) and max(run.lost_steps()[1:]) <= 5


def test_a_lost_node_comes_back_by_a_further_job(run: Run) -> None:
    shrunk(run)
    run.until(lambda: len(nodes_of(run, 3)) == 2)
    run.finish_soon()
    run.end()
    assert nodes_of(run, 2) == {"n0"}
    assert nodes_of(run, 3) == {"n0", "n2"}
    assert run.incidents()[1:] == [("handed_over", "handed-over"), ("completed", "completed")]
    assert is_saved_before_it_moved(run)
    assert not run.is_doubled()
    first, grown = (line["name"] for line in run.lines("tenure"))
    assert grown.startswith(f"{first}+")
    run.until(lambda: set(run.cluster.jobs().values()) <= {"COMPLETING"})


@pytest.mark.long
def test_a_further_job_that_is_taken_away_leaves_the_run_smaller(run: Run) -> None:
    """Ranks save, and neither a node nor the run is to blame."""
    shrunk(run)
    run.until(lambda: len(nodes_of(run, 3)) == 2)
    further = run.lines("tenure")[-1]["name"].partition("+")[2]
    run.cluster.run("scancel", further)
    run.until(lambda: len(nodes_of(run, 5)) == 2)
    run.finish_soon()
    run.end()
    assert nodes_of(run, 4) == {"n0"}
    assert not run.is_doubled()
    assert is_saved_before_it_moved(run)
    assert [kind for kind, _ in run.incidents()] == ["system_lost", *["handed_over"] * 3, "completed"]
    run.until(lambda: set(run.cluster.jobs().values()) <= {"COMPLETING"})


@pytest.mark.long
def test_a_further_job_leaves_the_queue_with_its_run(run: Run) -> None:
    run.cluster.run("sbatch", "-N2", "-w", "n2,n3", "-o", "/dev/null", "--wrap", "sleep 600")
    shrunk(run)
    run.until(lambda: "asks for 1 more node" in run.output())
    run.reach(max(each.step for each in run.told("step")) + 5)
    assert nodes_of(run, 2) == {"n0"}
    assert run.process is not None
    os.kill(run.process.pid, 15)
    run.end(3)
    run.until(lambda: {*run.cluster.jobs().values()} - {"COMPLETING"} == {"RUNNING"})
    assert len(run.cluster.jobs()) <= 2, "the other job, and one that cannot end on the lost node"


@pytest.mark.long
def test_another_orchestrator_uses_a_further_job_that_begins_without_one(run: Run) -> None:
    other = run.cluster.run(
        "sbatch", "--parsable", "-N2", "-w", "n2,n3", "-o", "/dev/null", "--wrap", "sleep 600"
    )
    shrunk(run)
    run.until(lambda: "asks for 1 more node" in run.output())
    run.reach(1, life="train-2")
    run.kill()
    run.cluster.run("scancel", other.strip())
    run.until(lambda: sorted(run.cluster.jobs().values()) == ["PENDING", "RUNNING", "RUNNING"])
    run.begin("resume")
    run.until(lambda: len(nodes_of(run, 3)) == 2)
    run.finish_soon()
    run.end()
    assert not run.is_doubled()
    assert run.incidents()[1:] == [("handed_over", "handed-over"), ("completed", "completed")]


@pytest.mark.long
def test_in_a_batch_script_of_the_users_own(run: Run) -> None:
    run.submit("-N2", "-t", "60")
    run.reach(6)
    run.cluster.lose("n1")
    run.until(lambda: len(nodes_of(run, 3)) == 2)
    run.finish_soon()
    run.until(lambda: "completed" in run.output())
    assert run.incidents()[1:] == [("handed_over", "handed-over"), ("completed", "completed")]
    assert not run.is_doubled()
    run.until(lambda: {*run.cluster.jobs().values()} <= {"COMPLETING"})


DIES = """
import os, sys
from pathlib import Path
sys.path[:0] = [{support!r}]
import slurm_runs
from prefect_ft.orchestrate.tenures import Tenancy

Tenancy.leave = lambda *_: os.kill(os.getpid(), 9)
sys.exit(slurm_runs.main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.long
def test_an_orchestrator_that_dies_as_the_run_grows(run: Run) -> None:
    """Ranks have saved and ended, and the next tenure is not known yet: that is the hand-over, in the same one."""
    program = run.place / "dies.py"
    program.write_text(DIES.format(support=str(Path(__file__).parents[1] / "support")))
    dying = run.begin("run", str(program))
    run.reach(6)
    run.cluster.lose("n1")
    assert dying.wait(120) == -9
    run.begin("resume")
    run.until(lambda: nodes_of(run, 4) == {"n0", "n2"})
    run.finish_soon()
    run.end()
    assert not run.is_doubled()
    assert is_saved_before_it_moved(run)
    kinds = [kind for kind, _ in run.incidents()]
    assert kinds == ["system_lost", "handed_over", "handed_over", "completed"]
