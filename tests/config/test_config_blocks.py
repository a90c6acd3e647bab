"""`block` in a job file: what is looked up takes its place, what stands beside it wins, errors say where."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from prefect_ft.backends.docker.config import DockerInfrastructure
from prefect_ft.backends.process.config import ProcessInfrastructure
from prefect_ft.config import JobConfig, load_job
from prefect_ft.errors import ConfigError

SAVED: Mapping[str, Mapping[str, Any]] = {
    "docker-training/gpu-box": {"type": "docker", "image": "i:1", "systems": ("s0", "s1"), "workers": 2},
    "process-training/here": {"type": "process", "systems": ("a",)},
    "docker-training/bad": {"type": "docker", "image": "i:1", "workers": 3},
}


def lookup(name: str) -> Mapping[str, Any]:
    if name not in SAVED:
        raise ConfigError(f"no block {name!r}")
    return SAVED[name]


def loaded(tmp_path: Path, infrastructure: str, of_phase: str = "", **kwargs: Any) -> JobConfig:
    path = tmp_path / "job.yaml"
    path.write_text(
        f"name: j\nmodel_dir: m\ninfrastructure: {infrastructure}\n"
        f"phases:\n  - {{name: p, mode: eval, command: [c]{of_phase}}}\n"
    )
    return load_job(path, **{"blocks": lookup, **kwargs})


def test_what_is_saved_takes_the_blocks_place(tmp_path: Path) -> None:
    job = loaded(
        tmp_path,
        "{block: docker-training/gpu-box, workers: 1, volumes: ['./d:/d']}",
        ", infrastructure: {block: process-training/here}",
    )
    expected = DockerInfrastructure(
        type="docker", image="i:1", systems=("s0", "s1"), workers=1, volumes=(f"{tmp_path}/d:/d",)
    )
    assert job.infrastructure == expected
    assert job.infrastructure_of(0) == ProcessInfrastructure(systems=("a",))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        pytest.param(
            "{block: docker-training/none}",
            "job.yaml:3: infrastructure.block: no block 'docker-training/none'",
            id="unknown",
        ),
        pytest.param(
            "{block: [x]}",
            "job.yaml:3: infrastructure.block: must be the name of a saved block, like docker-training/gpu-box, "
            "got a list",
            id="no-name",
        ),
        pytest.param(
            "{block: docker-training/bad}",
            "job.yaml:3: infrastructure.block: must be at most 1, the number of systems, got 3; name more systems",
            id="what-is-wrong-with-the-block",
        ),
        pytest.param(
            "{block: docker-training/gpu-box, workers: 9}",
            "job.yaml:3: infrastructure.workers: must be at most 2, the number of systems, got 9; name more systems",
            id="what-is-wrong-beside-it",
        ),
        pytest.param(
            "{block: docker-training/gpu-box, shm_sise: 1g}",
            "job.yaml:3: infrastructure.shm_sise: unknown key; did you mean 'shm_size'?",
            id="unknown-key-beside-it",
        ),
    ],
)
def test_errors_say_where(tmp_path: Path, written: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, written)
    assert str(error.value) == f"{tmp_path}/{message}"


def test_where_blocks_cannot_be_had_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"infrastructure\.block: saved blocks are not looked up here"):
        loaded(tmp_path, "{block: docker-training/gpu-box}", blocks=None)


def test_a_job_in_python_names_no_block() -> None:
    document = {"name": "j", "model_dir": "m", "infrastructure": {"block": "docker-training/gpu-box"}}
    with pytest.raises(ValueError, match="is looked up in job files only"):
        JobConfig.model_validate({**document, "phases": [{"name": "p", "mode": "eval", "command": ["c"]}]})


def test_a_job_moves_to_another_infrastructure(tmp_path: Path) -> None:
    job = loaded(tmp_path, "{systems: [a, b], workers: 2}")
    moved = job.on(ProcessInfrastructure(systems=("c",)))
    assert (moved.infrastructure.systems[0].name, moved.phases) == ("c", job.phases)


def test_a_job_does_not_move_where_it_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: j\nmodel_dir: m\ninfrastructure: {systems: [a, b], workers: 2}\n"
        "autorestart: {max_num_restarts: 1, min_num_systems: 2}\n"
        "phases: [{name: p, mode: eval, command: [c]}]\n"
    )
    with pytest.raises(
        ConfigError, match="infrastructure: must be at most 1, the workers of phase 'p', got 2"
    ):
        load_job(path).on(ProcessInfrastructure(systems=("c",)))
