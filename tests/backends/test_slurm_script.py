"""What is submitted: the script and sbatch's options, whole, and what a job file may not say."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from pydantic import ValidationError

from prefect_ft.backends.slurm.config import OWNED, SlurmInfrastructure
from prefect_ft.backends.slurm.script import job_name, options, script
from prefect_ft.worker.holder import not_launched

ROOT = PurePosixPath("/m/.prefect-ft/r/slurm")
LAST = [
    "--no-kill", "--no-requeue", "--open-mode=append", "--output=/m/.prefect-ft/r/slurm/holder-%j.log", "--chdir=/m",
    "--export=ALL",
]  # fmt: skip


def given(**fields: Any) -> SlurmInfrastructure:
    return SlurmInfrastructure.model_validate({"type": "slurm", **fields})


def said(infrastructure: SlurmInfrastructure, **more: Any) -> list[str]:
    return options(infrastructure, name="job-r", log=ROOT / "holder-%j.log", cwd=PurePosixPath("/m"), **more)


def test_the_script_is_the_holder() -> None:
    assert script("/opt/py thon", ROOT / "payload-1", ROOT) == (
        "#!/bin/sh\n"
        "# The allocation of a run of prefect-ft.\n"
        "exec '/opt/py thon' -I -S /m/.prefect-ft/r/slurm/payload-1 holder /m/.prefect-ft/r/slurm\n"
    )


def test_the_name_tells_the_run_and_is_not_long() -> None:
    assert job_name("job", "r") == "job-r"
    assert len(job_name("j" * 500, "r")) < 128


def test_the_least() -> None:
    assert said(given(nodes=2)) == ["--job-name=job-r", "--nodes=2", "--ntasks-per-node=1", *LAST]


def test_everything() -> None:
    infrastructure = given(
        nodes=8, spares=2, partition="gpu", account="a", qos="high", time="8:00:00", constraint="ib&h100",
        exclude=["n3", "n4"], gres="gpu:8", gpus_per_node="h100:8",
        sbatch={"mem": 0, "exclusive": True, "comment": "a b", "spread-job": False},
    )  # fmt: skip
    assert said(infrastructure, exclude=["n9", "n3"]) == [
        "--job-name=job-r", "--nodes=10", "--ntasks-per-node=1", "--partition=gpu", "--account=a", "--qos=high",
        "--time=8:00:00", "--constraint=ib&h100", "--gres=gpu:8", "--gpus-per-node=h100:8", "--exclude=n3,n4,n9",
        *LAST, "--mem=0", "--exclusive", "--comment=a b",
    ]  # fmt: skip


@pytest.mark.parametrize("option", sorted(OWNED))
def test_options_that_are_said_elsewhere_are_refused(option: str) -> None:
    with pytest.raises(ValidationError, match="cannot be given here"):
        given(nodes=1, sbatch={option: "1"})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        pytest.param({"nodes": 0}, "greater than or equal to 1", id="no-nodes"),
        pytest.param({"nodes": True}, "valid integer|number", id="no-number"),
        pytest.param({"nodes": 4, "workers": 3}, "is nodes here", id="workers"),
        pytest.param({"nodes": 1, "systems": [{"name": "n0"}]}, "cannot be named", id="systems"),
        pytest.param({"nodes": 1, "time": "soon"}, "must be a time limit", id="time"),
        pytest.param({"nodes": 1, "sbatch": {"--mem": "0"}}, "without its dashes", id="dashes"),
        pytest.param({"nodes": 1, "sbatch": {"N": "2"}}, "must be a long option", id="short"),
        pytest.param({"nodes": 1, "sbatch": {"mem": [1]}}, "must be a text", id="list"),
        pytest.param({"nodes": 1, "sbatch": {"mem": "1\n2"}}, "must be a text", id="lines"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        given(**fields)


def test_workers_are_as_many_as_nodes_and_the_allocation_names_the_systems() -> None:
    infrastructure = given(nodes=2, spares=1, time=30)
    assert (infrastructure.workers, infrastructure.systems, infrastructure.time) == (2, (), "30")
    placed = infrastructure.placed_on(("n0", "n1", "n2"))
    assert (placed.workers, [each.name for each in placed.systems]) == (2, ["n0", "n1", "n2"])
    assert given(spares=1).placed_on(("n0", "n1", "n2")).workers == 2
    assert given(nodes=4).placed_on(("n0",)).workers == 1


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        pytest.param({}, 0, id="none"),
        pytest.param({"gpus_per_node": "8"}, 8, id="a-number"),
        pytest.param({"gpus_per_node": "h100:4"}, 4, id="a-kind"),
        pytest.param({"gres": "license:2,gpu:a100:2(S:0-1)"}, 2, id="gres"),
        pytest.param({"gres": "gpu"}, 1, id="one"),
        pytest.param({"gres": "nvme:4"}, 0, id="others"),
    ],
)
def test_accelerators_are_what_is_asked_for(fields: dict[str, Any], count: int) -> None:
    assert given(nodes=1, **fields).accelerators() == count


def test_nodes_that_did_not_take_the_step_are_known_by_what_srun_says() -> None:
    """As srun 22.05 printed it where the slurmd of a node had been killed."""
    said = (
        "srun: error: Task launch for StepId=16.0 failed on node n1: Communication connection failure\n"
        "srun: error: Application launch failed: Communication connection failure\n"
        "srun: Job step aborted: Waiting up to 12 seconds for job step to finish.\n"
        "srun: error: n0: task 0: Killed\n"
    )
    assert not_launched(said) == {"n1"}
    assert not_launched("srun: error: n0: task 0: Killed\n") == set()
