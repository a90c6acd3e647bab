"""Hand-overs at time limits, in chains side by side. Limits count whole minutes, and these are of one minute each.

Three in the ordinary run; in the long mode twenty chains with ten each, or PREFECT_FT_HAND_OVERS=CHAINSxEACH.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import slurm
from slurm_runs import Run

MANY = tuple(map(int, os.environ.get("PREFECT_FT_HAND_OVERS", "20x10").split("x")))


@pytest.mark.parametrize(
    ("chains", "each"),
    [
        pytest.param(3, 1, marks=pytest.mark.timeout(300), id="3"),
        pytest.param(*MANY, marks=[pytest.mark.long, pytest.mark.timeout(600 + 120 * MANY[1])], id="many"),
    ],
)
@pytest.mark.usefixtures("slurm_nodes")
def test_no_step_is_lost_and_nobody_trains_twice(tmp_path: Path, chains: int, each: int) -> None:
    with slurm.slurm(nodes=chains) as cluster:
        given = {"nodes": 1, "time": "1", "reserve_s": 15}
        runs = [
            Run(cluster, tmp_path / f"run{number}", save_every=1_000_000, pause_s=0.2, infrastructure=given)
            for number in range(chains)
        ]
        try:
            for run in runs:
                run.begin()
            for run in runs:
                run.until(lambda run=run: run.lives() > each, 120 + 110 * each)  # type: ignore[misc]
            for run in runs:
                run.finish_soon()
            for run in runs:
                run.end()
            assert not {*cluster.jobs().values()} - {"COMPLETING"}
        finally:
            for run in runs:
                run.close()
    for run in runs:
        assert {kind for kind, _ in run.incidents()} == {"handed_over", "completed"}
        assert run.is_resumed_where_asked(), run.output()
        assert not run.is_doubled()
