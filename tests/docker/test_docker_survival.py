"""Orchestrator, containers or all of it die: with containers too the run comes to its right end."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from deaths import assert_right, born, hold, journals, live, of_type, write_job
from engine import IMAGE
from eventual import eventually

from prefect_ft.backends.docker.engine import Client, connect
from prefect_ft.cli import main

pytestmark = pytest.mark.timeout(300)

MakeJob = Callable[..., Path]


@pytest.fixture
def job(docker_engine: str, tmp_path: Path) -> MakeJob:
    """Write the job, with two containers and their files at the paths that they have here."""

    def make(**fields: str) -> Path:
        pool = (
            f"{{type: docker, image: {IMAGE!r}, engine: '{docker_engine}', systems: [s0, s1], workers: 2, "
            f"volumes: ['{tmp_path}:{tmp_path}']}}"
        )
        return write_job(tmp_path, pool, **fields)

    return make


@pytest.fixture
def api(docker_engine: str, api: None) -> Iterator[Client]:
    """The engine; nothing of a run may be left on it."""
    with closing(connect(docker_engine)) as client:
        yield client
        assert eventually(lambda: client.containers(all=True, filters={"label": "prefect-ft.run"}), []) == []


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("before_start", marks=pytest.mark.long),
        pytest.param("in_training", marks=pytest.mark.long),
        pytest.param("before_action", marks=pytest.mark.long),
        "in_action",
        pytest.param("between_phases", marks=pytest.mark.long),
    ],
)
def test_the_flow_process_is_killed(job: MakeJob, api: Client, moment: str) -> None:
    path = job()
    assert live(path, f"{moment}/flow") == -9
    assert live(path) == 0
    assert_right(path)


@pytest.mark.long
def test_all_of_it_is_killed_as_by_the_machines_power(job: MakeJob, api: Client, tmp_path: Path) -> None:
    path = job()
    hold(path)
    assert live(path, "in_training/power") == -9
    assert live(path) == 0
    assert_right(path, losses=1)


def steps_of(directory: Path) -> list[str]:
    return sorted(file.name for file in (directory / "one").glob("step-*.json"))


@pytest.mark.long  # test_docker_block.py removes one too
def test_a_container_is_removed_by_hand(job: MakeJob, api: Client, tmp_path: Path) -> None:
    path = job()
    hold(path)
    orchestrator = born(path)
    try:
        while not steps_of(tmp_path):
            assert orchestrator.poll() is None, (tmp_path / "orchestrator.log").read_text()
            signal.sigtimedwait([], 0.02)
        (found,) = api.containers(filters={"label": ["prefect-ft.worker=1", "prefect-ft.phase=0"]})
        api.remove_container(found["Id"], force=True)
        assert orchestrator.wait(90) == 0
    finally:
        orchestrator.kill()
        orchestrator.wait()
    assert_right(path, losses=1)
    lines = journals(tmp_path / "model")["one"]
    first = of_type(lines, "incident")[0]
    assert (first["kind"], first["worker"]) == ("in_place_failed", 1)
    # The engine kills before it removes: it may be asked between the two.
    assert first["evidence"]["rule"] in ("container-removed", "container-ended")


@pytest.mark.long
def test_containers_count_their_starts(job: MakeJob, api: Client, tmp_path: Path) -> None:
    """In place the container stays; its command is started again in it."""
    path = job()
    assert live(path) == 0
    attempts = of_type(journals(tmp_path / "model")["one"], "attempt")
    assert [attempt["start_counts"] for attempt in attempts] == [[[1, 1], [1, 1]], [[1, 2], [1, 2]]]
    assert os.listdir(tmp_path / "two")


def test_what_a_run_left_that_is_gone_is_cleaned(
    job: MakeJob, api: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = job()
    assert live(path, "in_training/flow") == -9
    assert eventually(lambda: len(api.containers(filters={"label": "prefect-ft.run"})), 2) == 2
    shutil.rmtree(tmp_path / "model")
    assert main(["clean"]) == 0
    assert "removed" in capsys.readouterr().out
