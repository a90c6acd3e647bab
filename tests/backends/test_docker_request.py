"""The requests that are sent to an engine, whole: what a worker is and what it may do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prefect_ft.backends.base import Worker
from prefect_ft.backends.docker.config import DockerInfrastructure
from prefect_ft.backends.docker.request import (
    Mounted,
    create_request,
    merged,
)

WORKER = Worker(number=1, system="s1", epoch=3, decision=2)
LABELS = {
    "prefect-ft.run": "run-1",
    "prefect-ft.phase": "0",
    "prefect-ft.worker": "1",
    "prefect-ft.system": "s1",
    "prefect-ft.token": "3.2",
}
MOUNTED = Mounted(home="/rt/run-1/0-1-3-2", payload="/rt/payload-1", binds=("/ck:/ck",))


def request(*, system: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    infrastructure = DockerInfrastructure.model_validate(
        {"type": "docker", "image": "torch:2", "systems": [{"name": "s1", **(system or {})}], **fields}
    )
    return create_request(
        infrastructure, infrastructure.systems[0], LABELS, python="python3", mounted=MOUNTED
    )


PLAIN = {
    "Image": "torch:2",
    "Entrypoint": ["python3"],
    "Cmd": ["-I", "-S", "/rt/payload-1", "/rt/run-1/0-1-3-2/agent.json"],
    "Labels": LABELS,
    "HostConfig": {
        "Binds": [
            "/rt/run-1/0-1-3-2:/rt/run-1/0-1-3-2",
            "/rt/payload-1:/rt/payload-1:ro",
            "/ck:/ck",
        ],
        "SecurityOpt": ["no-new-privileges"],
    },
}


def host(**fields: Any) -> dict[str, Any]:
    return {**PLAIN, "HostConfig": {**PLAIN["HostConfig"], **fields}}  # type: ignore[dict-item]


GPU = {"Count": -1, "Capabilities": [["gpu"]]}


@pytest.mark.parametrize(
    ("volume", "hidden"),
    [
        pytest.param("/srv/m:/m", "/m/.prefect-ft", id="the-model-directory"),
        pytest.param("/srv:/all", "/all/m/.prefect-ft", id="a-directory-above"),
        pytest.param("/:/host:ro", "/host/srv/m/.prefect-ft", id="everything"),
        pytest.param("/srv/m/checkpoints:/ck", None, id="a-directory-beside"),
        pytest.param("/srv/mine:/m", None, id="a-name-that-begins-alike"),
        pytest.param("data:/srv/m", None, id="a-volume-by-name"),
    ],
)
def test_no_container_sees_the_directory_of_runs(volume: str, hidden: str | None) -> None:
    infrastructure = DockerInfrastructure.model_validate(
        {"type": "docker", "image": "torch:2", "systems": ["s1"], "volumes": [volume]}
    )
    mounted = replace(MOUNTED, private="/srv/m/.prefect-ft")
    made = create_request(
        infrastructure, infrastructure.systems[0], LABELS, python="python3", mounted=mounted
    )
    assert [*made["HostConfig"].get("Tmpfs", {})] == ([hidden] if hidden else [])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, PLAIN, id="plain"),
        pytest.param(
            {"env": {"A": "all", "B": "b"}, "system": {"env": {"A": "own"}}},
            {**PLAIN, "Env": ["A=own", "B=b"]},
            id="the-systems-environment-wins",
        ),
        pytest.param(
            {"env": {"A": "all", "B": "b"}, "system": {"env": {"A": None, "C": None}}},
            {**PLAIN, "Env": ["B=b"]},
            id="what-a-system-unsets",
        ),
        pytest.param({"user": "1000:100"}, {**PLAIN, "User": "1000:100"}, id="user"),
        pytest.param({"network": "host"}, host(NetworkMode="host"), id="network"),
        pytest.param(
            {"resources": {"cpus": 1.5, "cpuset": "0-1", "memory": "64g", "pids": 500}},
            host(NanoCpus=1_500_000_000, CpusetCpus="0-1", Memory=64 << 30, PidsLimit=500),
            id="resources",
        ),
        pytest.param({"shm_size": "8g"}, host(ShmSize=8 << 30), id="shm"),
        pytest.param(
            {"ulimits": {"memlock": -1, "nofile": "1024:65536"}},
            host(
                Ulimits=[
                    {"Name": "memlock", "Soft": -1, "Hard": -1},
                    {"Name": "nofile", "Soft": 1024, "Hard": 65536},
                ]
            ),
            id="ulimits",
        ),
        pytest.param({"device_requests": [{}]}, host(DeviceRequests=[GPU]), id="all-gpus"),
        pytest.param(
            {"device_requests": [{}], "system": {"device_requests": [{"device_ids": ["0", "1"]}]}},
            host(DeviceRequests=[{"DeviceIDs": ["0", "1"], "Capabilities": [["gpu"]]}]),
            id="a-systems-own-gpus",
        ),
        pytest.param(
            {"devices": ["/dev/davinci0", "/dev/a:/dev/b:r"]},
            host(
                Devices=[
                    {
                        "PathOnHost": "/dev/davinci0",
                        "PathInContainer": "/dev/davinci0",
                        "CgroupPermissions": "rwm",
                    },
                    {"PathOnHost": "/dev/a", "PathInContainer": "/dev/b", "CgroupPermissions": "r"},
                ]
            ),
            id="npus",
        ),
        pytest.param(
            {"cap_add": ["SYS_PTRACE"], "cap_drop": ["ALL"], "no_new_privileges": False},
            {
                **PLAIN,
                "HostConfig": {
                    "Binds": PLAIN["HostConfig"]["Binds"],  # type: ignore[index]
                    "CapAdd": ["SYS_PTRACE"],
                    "CapDrop": ["ALL"],
                },
            },
            id="privileges",
        ),
        pytest.param(
            {"volumes": ["data:/data:ro"]},
            host(Binds=[*PLAIN["HostConfig"]["Binds"], "data:/data:ro"]),  # type: ignore[index]
            id="volumes",
        ),
        pytest.param(
            {"create": {"Hostname": "gpu", "HostConfig": {"IpcMode": "host", "SecurityOpt": ["apparmor=x"]}}},
            {
                **host(IpcMode="host", SecurityOpt=["no-new-privileges", "apparmor=x"]),
                "Hostname": "gpu",
            },
            id="passed-through",
        ),
    ],
)
def test_the_request(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert request(**fields) == expected


def test_a_users_words_are_merged_and_ours_stay() -> None:
    ours = {"a": {"b": 1, "c": [1]}, "d": 1}
    assert merged(ours, {"a": {"c": [2], "e": 3}, "d": 2}) == {"a": {"b": 1, "c": [1, 2], "e": 3}, "d": 2}
    assert ours == {"a": {"b": 1, "c": [1]}, "d": 1}
