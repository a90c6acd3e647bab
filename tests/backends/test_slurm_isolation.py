"""What Slurm is told of nodes that a run isolates; its answers are played."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from prefect_ft.backends.slurm.allocations import Allocations
from prefect_ft.backends.slurm.commands import CommandResult, Slurm
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.backends.slurm.isolation import keeping_out
from prefect_ft.journal.records import DecisionLine, Line
from prefect_ft.model import Counters, Decision
from prefect_ft.observe import Notice, tell
from prefect_ft.worker.holder import ALLOCATION

LOST, SUSPECT = ("n1", "node-lost"), ("n2", "fault-critical")


class Played:
    """A Slurm in which job 17 runs and job 18 waits; it remembers what is changed."""

    def __init__(self) -> None:
        self.changed: list[str] = []

    def __call__(self, words: Sequence[str], timeout_s: float) -> CommandResult:
        if "update" in words:
            self.changed.append(" ".join(words[words.index("update") + 1 :]))
            return CommandResult(True, "", "")
        state = "RUNNING" if words[-1] == "17" else "PENDING"
        return CommandResult(True, f"JobId={words[-1]} JobState={state} Reason=None\n", "")


def decision(node: str, rule: str) -> Line:
    made = Decision(
        n=1, rule=rule, action="isolate_and_rebuild", reason="so", isolate=(node,), placement=("n0", "n3"),
        counters=Counters(),
    )  # fmt: skip
    return DecisionLine(n=1, facts=made)


def isolate(
    tmp_path: Path,
    *isolated: tuple[str, str],
    submitted: bool = True,
    gives_back: bool = True,
    tenure: str = "slurm-17",
) -> tuple[list[str], Allocations]:
    """Have a phase isolate nodes, one after the other; return what was changed."""
    allocations = Allocations(tmp_path)
    (allocations.directory / "slurm-17").mkdir(parents=True)
    told = {"job": "17", "nodes": ["n0", "n1", "n2", "n3"], "hosts": {}}
    (allocations.directory / "slurm-17" / ALLOCATION).write_text(json.dumps(told))
    allocations.choose(tenure)
    allocations.note(*(["17", "18"] if submitted else ["18"]))
    allocations.point_from(tmp_path, "job-r")
    played, lines = Played(), []
    given = SlurmInfrastructure.model_validate({"type": "slurm", "exclude": "n9", "gives_back": gives_back})
    with keeping_out(given, tmp_path, lambda: lines, Slurm(run=played)):
        for each in isolated:
            lines.append(decision(*each))
            tell(Notice(text="decided"))
    return played.changed, allocations


def test_a_lost_node_is_released_and_kept_out(tmp_path: Path) -> None:
    changed, allocations = isolate(tmp_path, LOST)
    assert changed == ["JobId=18 ExcNodeList=n9,n1", "JobId=17 NodeList=n0,n2,n3"]
    assert allocations.avoided == {"n1": True}


def test_unless_it_is_wanted_a_lost_node_stays_in_its_allocation(tmp_path: Path) -> None:
    changed, allocations = isolate(tmp_path, LOST, gives_back=False)
    assert changed == ["JobId=18 ExcNodeList=n9,n1"]
    assert allocations.avoided == {"n1": True}


def test_a_suspect_is_kept_out_and_not_released(tmp_path: Path) -> None:
    changed, _ = isolate(tmp_path, SUSPECT)
    assert changed == ["JobId=18 ExcNodeList=n9,n2"]


@pytest.mark.parametrize(
    ("node", "submitted"),
    [pytest.param("n0", True, id="the-batch-host"), pytest.param("n1", False, id="a-job-of-the-users-own")],
)
def test_what_would_end_a_job_or_is_not_ours_is_left(tmp_path: Path, node: str, submitted: bool) -> None:
    changed, _ = isolate(tmp_path, (node, "node-lost"), submitted=submitted)
    assert changed == [f"JobId=18 ExcNodeList=n9,{node}"]


def test_a_node_of_a_further_job_is_not_released_with_the_allocation(tmp_path: Path) -> None:
    further = Allocations(tmp_path).directory / "slurm-23"
    further.mkdir(parents=True)
    (further / ALLOCATION).write_text(json.dumps({"job": "23", "nodes": ["n4"], "hosts": {}}))
    changed, allocations = isolate(tmp_path, ("n4", "node-lost"), tenure="slurm-17+23")
    assert changed == ["JobId=18 ExcNodeList=n9,n4"]
    assert allocations.avoided == {"n4": True}


def test_nodes_are_kept_out_one_after_the_other(tmp_path: Path) -> None:
    changed, allocations = isolate(tmp_path, SUSPECT, LOST)
    assert changed[-2:] == ["JobId=18 ExcNodeList=n9,n2,n1", "JobId=17 NodeList=n0,n2,n3"]
    assert allocations.avoided == {"n2": False, "n1": True}
