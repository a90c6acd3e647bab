"""Restart after restart, in place and with new containers: nothing adds up."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from engine import IMAGE
from eventual import eventually
from prefect.settings import PREFECT_API_URL

from prefect_ft import JobConfig, train_flow
from prefect_ft.backends.docker.engine import Client, connect

SCRIPT = """
import os, signal, sys, zipfile
attempt = int(os.environ["PREFECT_FT_ATTEMPT"])
if attempt > int(sys.argv[1]):
    sys.exit(0)
if attempt % 2:
    with zipfile.ZipFile("ck/.tmp", "w") as file:
        file.writestr("weights", "x" * 100)
    os.replace("ck/.tmp", f"ck/step-{attempt}.npz")
if os.fork() == 0:
    os.setsid()
    signal.pause()
raise ConnectionError("reset")
"""
"""Every other attempt makes progress: what fails then is restarted in place, what fails next is rebuilt."""


def job(directory: Path, engine: str, restarts: int) -> JobConfig:
    (directory / "ck").mkdir(parents=True)
    document = {
        "name": "many",
        "model_dir": "model",
        "autorestart": {"max_num_restarts": 3, "stop_on_repeat": 0},
        "infrastructure": {
            "type": "docker", "image": IMAGE, "engine": engine, "volumes": [f"{directory}:{directory}"],
            "create": {"Volumes": {"/scratch": {}}},
        },
        "phases": [
            {
                "name": "train", "command": ["python", "-S", "-c", SCRIPT, str(restarts)], "cwd": str(directory),
                "checkpoints": {"path": "ck"},
            }
        ],
    }  # fmt: skip
    return JobConfig.model_validate(document).at(directory)


@pytest.fixture
def client(docker_engine: str) -> Iterator[Client]:
    with closing(connect(docker_engine)) as client:
        yield client


def left(client: Client) -> dict[str, Any]:
    """What there is of everything that could add up."""
    return {
        "containers": sorted(each["Id"] for each in client.containers(all=True)),
        "volumes": sorted(each["Name"] for each in client.volumes()["Volumes"] or []),
        "networks": sorted(each["Id"] for each in client.networks()),
        "children": [each.pid for each in psutil.Process().children(recursive=True)],
        "descriptors": sorted(descriptors()),
    }


def descriptors() -> Iterator[str]:
    """What this process holds open: files by their names, and how many of all else, but for Prefect's own."""
    prefects = connections_to_prefect()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if int(name) not in prefects:
                yield re.sub(r"\d+", "", os.readlink(f"/proc/self/fd/{name}"))


def connections_to_prefect() -> set[int]:
    """Descriptors of the connections that Prefect's clients keep to its server, for calls to come.

    How many they keep depends on how many calls happened to meet.
    """
    port = urlsplit(str(PREFECT_API_URL.value())).port
    tcp = psutil.Process().net_connections("tcp")
    return {each.fd for each in tcp if each.raddr and each.raddr.port == port}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("restarts", [4, pytest.param(50, marks=pytest.mark.long)])
def test_restarts_leave_nothing_behind(
    docker_engine: str, client: Client, tmp_path: Path, restarts: int
) -> None:
    train_flow(job(tmp_path / "first", docker_engine, 2))  # what stays open for good is open then
    before, prefects = left(client), len(connections_to_prefect())
    (summary,) = train_flow(job(tmp_path / "many", docker_engine, restarts))
    assert summary["restarts"] == {"restart_in_place": restarts // 2, "rebuild": restarts // 2}
    assert eventually(lambda: left(client), before) == before
    assert len(connections_to_prefect()) - prefects <= 3, "more than calls that met can explain"
