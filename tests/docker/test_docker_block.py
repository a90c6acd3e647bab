"""A block by itself on a real engine: the same container, a new one, none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from engine import IMAGE
from eventual import eventually

from prefect_ft import DockerTraining
from prefect_ft.backends.docker.engine import Client, connect
from prefect_ft.errors import RunFailedError

SECRET = "hf_s3cr3t-value"
SCRIPT = """
import os, time
print(os.environ["MA_SCHEDULE_CNT"], os.environ["MA_PROC_START_CNT"], os.path.exists("/tmp/mark"), os.environ["TOKEN"])
open("/tmp/mark", "w").close()
time.sleep(float(os.environ["WAIT"]))
"""


@pytest.fixture
def client(docker_engine: str) -> Iterator[Client]:
    with closing(connect(docker_engine)) as client:
        yield client
        assert eventually(lambda: client.containers(all=True, filters={"label": "prefect-ft.run"}), []) == []


@pytest.fixture
def block(docker_engine: str, client: Client, tmp_path: Path) -> Iterator[Callable[..., DockerTraining]]:
    made: list[DockerTraining] = []

    def make(**fields: object) -> DockerTraining:
        command = ["python", "-S", "-u", "-c", SCRIPT]
        fields = {"command": command, "model_dir": str(tmp_path / "alone"), **fields}
        made.append(DockerTraining(image=IMAGE, engine=docker_engine, secret_env={"TOKEN": SECRET}, **fields))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def ids(client: Client) -> set[str]:
    return {each["Id"] for each in client.containers(filters={"label": "prefect-ft.run"})}


def test_the_same_container_and_then_a_new_one(block: Callable[..., DockerTraining], client: Client) -> None:
    training = block()
    run = training.start(env={"WAIT": "0"})
    run.wait_for_completion()
    first = ids(client)
    assert SECRET not in json.dumps([client.inspect_container(each) for each in first])
    training.re_execute().wait_for_completion()
    assert eventually(lambda: ids(client), first) == first
    training.rebuild().wait_for_completion()
    assert eventually(lambda: len(ids(client)), 1) == 1
    second = ids(client)
    assert second.isdisjoint(first)
    assert [line.partition("] ")[2] for line in run.log.read_text().splitlines()] == [
        f"1 1 False {'*' * len(SECRET)}",
        f"1 2 True {'*' * len(SECRET)}",
        f"2 1 False {'*' * len(SECRET)}",
    ]
    training.stop()
    assert eventually(lambda: ids(client), set()) == set()


def test_a_container_that_somebody_removes_is_told_and_rebuilt(
    block: Callable[..., DockerTraining], client: Client
) -> None:
    training = block(systems=["s0", "s1"], workers=2)
    run = training.start(env={"WAIT": "600"})
    (gone,) = client.containers(filters={"label": "prefect-ft.worker=1"})
    client.remove_container(gone["Id"], force=True)
    with pytest.raises(RunFailedError, match=r"worker 1: in place failed: (somebody|its container)"):
        run.wait_for_completion()
    training.rebuild()
    assert eventually(lambda: len(ids(client)), 2) == 2
