"""Ranks that hang in containers are found, blamed and restarted there as they are in processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine import IMAGE
from hanging import FAULTS, Make, Workers, assert_found, fault, fewer, make_hanging, stop

from prefect_ft.backends.base import AgentSettings, Backend
from prefect_ft.backends.docker import DockerBackend
from prefect_ft.config import DockerInfrastructure

__all__ = ["make_hanging", "stop"]


@pytest.fixture
def workers_of_phase(docker_engine: str, tmp_path: Path) -> Workers:
    """Containers that have the test's directory where it is here."""

    def backend(told: AgentSettings, directory: Path, systems: tuple[str, ...]) -> Backend:
        infrastructure = {
            "type": "docker", "image": IMAGE, "engine": docker_engine, "systems": systems,
            "volumes": [f"{tmp_path}:{tmp_path}"],
        }  # fmt: skip
        return DockerBackend(told, directory, DockerInfrastructure.model_validate(infrastructure))

    return Workers(backend, ("python3", "-S"))


@pytest.mark.parametrize("name", fewer(FAULTS, "stopped"))
def test_a_rank_that_hangs_in_a_container_is_found_blamed_and_restarted(
    name: str, make_hanging: Make
) -> None:
    assert_found(make_hanging(fault(name)), name)
