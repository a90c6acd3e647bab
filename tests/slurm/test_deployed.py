"""train-flow/slurm as a Prefect worker on a login node runs it, and a SlurmTraining in a flow of a user's own."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deaths import journals, of_type
from sites import Site

from tests.deployment.conftest import deployed
from tests.deployment.test_deployment import of_run, run_of

pytestmark = pytest.mark.timeout(300)

OWN_FLOW = """
from prefect import flow
from prefect_ft import SlurmTraining

CODE = '''
import os, time
print("on", os.environ["PREFECT_FT_SYSTEM"], os.environ["MA_SCHEDULE_CNT"], os.environ["MA_PROC_START_CNT"], flush=True)
'''

@flow
def own():
    training = SlurmTraining(
        nodes=2, spares=1, python={python!r}, command=["{python}", "-S", "-c", CODE], model_dir="own"
    )
    with training.start() as run:
        run.wait_for_completion()
        training.re_execute().wait_for_completion()
        training.rebuild().wait_for_completion()
        return run.fetch_result().succeeded

if __name__ == "__main__":
    assert own() is True
"""


@pytest.fixture(scope="module")
def site_on_a_login_node(slurm_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A deployed train-flow, whose worker reaches the cluster, and this Python where a user's PATH has it."""
    with deployed(tmp_path_factory) as site:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        site.env |= {"SLURM_CONF": str(slurm_cluster.conf), "PATH": path}
        yield site


def left_in_the_queue(cluster: Any) -> dict[str, str]:
    """Return what jobs are there after a moment in which Slurm may see their end."""
    deadline = time.monotonic() + 20
    while (jobs := cluster.jobs()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return dict(jobs)


@pytest.mark.long  # a minute
def test_the_deployment_for_slurm_completes_and_shows_the_restart_of_a_rank(
    slurm_nodes: Any, site_on_a_login_node: Site
) -> None:
    site = site_on_a_login_node
    site.start_worker()
    site.prefect("deployment", "run", "train-flow/slurm", "--watch", timeout_s=200)
    found = of_run(site, run_of(site, "slurm"))
    assert found["states"] == ["Running", "Restarting in place", "Running", "Completed"]
    assert found["tasks"] == [("pretrain", 2, "Completed")]
    (warning,) = found["warnings"]
    assert "action=restart_in_place" in warning
    (lines,) = journals(site.directory / "runs" / "quickstart-slurm").values()
    rows = json.loads(found["artifacts"]["restart-ledger"])
    assert [row["rule"] for row in rows] == [line["rule"] for line in of_type(lines, "decision")]
    assert len(of_type(lines, "tenure")) == 1
    assert left_in_the_queue(slurm_nodes) == {}
    site.stop(site.processes.pop())


@pytest.mark.long
def test_a_block_in_a_flow_of_the_users_own_gives_its_nodes_back(
    slurm_nodes: Any, site_on_a_login_node: Site
) -> None:
    site = site_on_a_login_node
    (site.directory / "own.py").write_text(OWN_FLOW.format(python=sys.executable))
    site.command("own", timeout_s=200)
    told = [line.partition("] ")[2] for line in (site.directory / "own" / "run.log").read_text().splitlines()]
    assert sorted(told) == sorted(
        f"on {node} {counts}" for node in ("n0", "n1") for counts in ("1 1", "1 2", "2 1")
    )
    assert left_in_the_queue(slurm_nodes) == {}
