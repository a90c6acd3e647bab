"""slurmctld away for minutes: nothing is concluded from its silence, and nothing of it is needed.

PREFECT_FT_AWAY_S=60 has it away for a minute, instead of five.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm_runs import Run, Told

AWAY_S = float(os.environ.get("PREFECT_FT_AWAY_S", "300"))

pytestmark = [pytest.mark.long, pytest.mark.timeout(400 + AWAY_S)]


@pytest.fixture
def run(slurm_nodes: Any, tmp_path: Path) -> Iterator[Run]:
    """A run of two nodes and a spare, that has not begun."""
    made = Run(slurm_nodes, tmp_path / "run", infrastructure={"nodes": 2, "spares": 1})
    yield made
    made.close()


def last(run: Run, rank: int) -> Told:
    """Return the last step of a rank."""
    return [each for each in run.told("step") if each.rank == rank][-1]


def test_a_run_loses_a_rank_and_a_node_meanwhile_and_trains_on(run: Run) -> None:
    """A rank is killed after a fifth of the time, a node is lost after two fifths; ranks step to the end."""
    run.begin()
    run.reach(12)
    jobs = run.cluster.jobs()
    with run.cluster.controller_away():
        began = time.monotonic()
        _pause(run, began + AWAY_S / 5)
        os.kill(last(run, 1).pid, signal.SIGKILL)
        run.until(lambda: any(each.life == "train-2" for each in run.told("step")))
        _pause(run, began + 2 * AWAY_S / 5)
        lost = last(run, 1).node
        run.cluster.lose(lost)
        run.until(lambda: any(each.life == "train-3" for each in run.told("step")))
        _pause(run, began + AWAY_S)
        assert run.lives() == 3
        assert {last(run, rank).node for rank in (0, 1)} == {*run.cluster.nodes[:3]} - {lost}
    assert run.cluster.jobs().keys() == jobs.keys()
    run.finish_soon()
    run.end()
    assert [kind for kind, _ in run.incidents()] == ["exit", "system_lost", "completed"]
    assert [rule for _, rule in run.incidents()][1:] == ["node-lost", "completed"]
    assert [line["action"] for line in run.lines("decision")] == [
        "restart_in_place", "isolate_and_rebuild", "complete",
    ]  # fmt: skip
    assert not run.is_doubled()
    assert len(run.lines("tenure")) == 1
    run.until(lambda: set(run.cluster.jobs().values()) <= {"COMPLETING"})


def _pause(run: Run, until_s: float) -> None:
    """Wait, while ranks step: a silence of ten seconds is a failure."""
    while time.monotonic() < until_s:
        assert time.time() - max(each.at_s for each in run.told("step")) < 10, run.output()
        time.sleep(1.0)
