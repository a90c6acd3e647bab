"""What a run keeps of its allocations of Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefect_ft.backends.slurm.allocations import Allocations, job_of
from prefect_ft.worker.holder import ALLOCATION, ENDED


def begun(allocations: Allocations, name: str, **fields: object) -> None:
    place = allocations.directory / name
    place.mkdir(parents=True)
    told = {"job": job_of(name), "name": name, "nodes": ["n0", "n1"], "hosts": {}, "ends_s": None, **fields}
    (place / ALLOCATION).write_text(json.dumps(told))


@pytest.mark.parametrize(("name", "job"), [("slurm-17", "17"), ("slurm-17.2", "17"), ("other", "other")])
def test_a_tenure_is_a_life_of_a_job(name: str, job: str) -> None:
    assert job_of(name) == job


def test_the_last_life_of_a_job_counts(tmp_path: Path) -> None:
    allocations = Allocations(tmp_path)
    for name in ("slurm-17", "slurm-17.2", "slurm-17.10", "slurm-170"):
        begun(allocations, name)
    found = allocations.of_job("17")
    assert found is not None
    assert found.name == "slurm-17.10"
    assert allocations.of_job("18") is None


def test_what_the_run_has_released_is_over_before_its_holder_says_so(tmp_path: Path) -> None:
    """The next tenure is looked for at once, and the holder looks only now and then."""
    allocations = Allocations(tmp_path)
    begun(allocations, "slurm-17")
    assert not allocations.has_ended("slurm-17")
    allocations.release("slurm-17")
    assert allocations.has_ended("slurm-17")
    assert not (allocations.directory / "slurm-17" / ENDED).exists()


def test_a_job_is_noted_once_and_in_its_order(tmp_path: Path) -> None:
    allocations = Allocations(tmp_path)
    allocations.directory.mkdir()
    for job in ("17", "18", "17"):
        allocations.note(job)
    assert allocations.submitted == ["17", "18"]


def test_node_servers_that_have_not_begun_have_no_port(tmp_path: Path) -> None:
    allocations = Allocations(tmp_path)
    begun(allocations, "slurm-17")
    (allocations.directory / "slurm-17" / "n1.json").write_text('{"port": 5}')
    found = allocations.named("slurm-17")
    assert found is not None
    assert allocations.ports(found) == {"n1": 5}
