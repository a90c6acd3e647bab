"""A job's infrastructure of type `docker`."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StrictBool
from typing_extensions import Self

from prefect_ft.backends.docker.fields import (
    Create,
    DeviceMapping,
    DeviceRequest,
    EngineUrl,
    Resources,
    Ulimits,
    Volume,
)
from prefect_ft.config.fields import Env, Some, SystemName, Text, absolute
from prefect_ft.config.images import ImageName, Size
from prefect_ft.config.infrastructure import Infrastructure, System, named

AGENT_TASKS = 2
"""Processes and threads of an agent: itself, and the one that verifies checkpoints."""


class DockerSystem(System):
    """One engine of the pool, or a part of one's devices."""

    engine: EngineUrl | None = Field(
        default=None,
        description="Replaces the infrastructure's engine",
        examples=["unix:///run/docker-1.sock"],
    )
    device_requests: tuple[DeviceRequest, ...] | None = Field(
        default=None, description="Replaces the infrastructure's device_requests"
    )
    devices: tuple[DeviceMapping, ...] | None = Field(
        default=None, description="Replaces the infrastructure's devices"
    )


NameOrDockerSystem = Annotated[
    DockerSystem, BeforeValidator(named, json_schema_input_type=SystemName | DockerSystem)
]


class DockerInfrastructure(Infrastructure):
    """Workers are containers, one for each system that is used."""

    type: Literal["docker"] = Field(description="What the workers are")
    image: ImageName = Field(
        description="The workers' image: with Python 3.9 or newer, and nothing of this package",
        examples=["my-training:latest"],
    )
    systems: Some[tuple[NameOrDockerSystem, ...]] = Field(
        default=(DockerSystem(name="localhost"),),
        description="The pool, in the order in which workers are placed: names, or mappings {name, engine, env, …}; "
        "default localhost alone",
        examples=[["s0", "s1"]],
    )
    engine: EngineUrl | None = Field(
        default=None,
        description="Engine of the systems that name none; absent: DOCKER_HOST, else /var/run/docker.sock",
        examples=["unix:///var/run/docker.sock"],
    )
    pull: Literal["missing", "always", "never"] = Field(
        default="missing",
        description="When the image is pulled: before the run begins, and on a system's first use",
    )
    volumes: tuple[Volume, ...] = Field(
        default=(),
        description="What is mounted, as HOST:CONTAINER or HOST:CONTAINER:ro; HOST is a path, relative to the job "
        "file's directory where it begins with a dot, or the name of a volume",
        examples=[["./data:/data:ro"]],
    )
    env: Env = Field(
        default={}, description="Environment variables of the containers; job, phase and system win"
    )
    network: Text | None = Field(
        default=None,
        description="Network that the workers join, or host, or none; absent: the engine's default",
    )
    user: Text | None = Field(
        default=None,
        description="User of the agent and the ranks, as UID, UID:GID or a name; absent: the image's",
    )
    resources: Resources = Field(default=Resources(), description="What a worker may use")
    shm_size: Size | None = Field(
        default=None,
        description="Size of /dev/shm: bytes, or a number with k, m or g; absent: the engine's default",
        examples=["8g"],
    )
    ulimits: Ulimits = Field(
        default={},
        description="Limits of a worker's processes by name, each a number or SOFT:HARD; -1: none",
        examples=[{"memlock": "-1", "nofile": "65536:65536"}],
    )
    device_requests: tuple[DeviceRequest, ...] = Field(
        default=(), description="Devices asked of the engine's drivers: GPUs"
    )
    devices: tuple[DeviceMapping, ...] = Field(
        default=(),
        description="Device files, as HOST, HOST:CONTAINER or HOST:CONTAINER:PERMISSIONS",
        examples=[["/dev/davinci0"]],
    )
    cap_add: tuple[Text, ...] = Field(
        default=(), description="Capabilities to add", examples=[["SYS_PTRACE"]]
    )
    cap_drop: tuple[Text, ...] = Field(default=(), description="Capabilities to drop", examples=[["ALL"]])
    no_new_privileges: StrictBool = Field(
        default=True, description="Let no process of a worker gain privileges, by setuid programs for one"
    )
    create: Create = Field(
        default={},
        description="More of the engine's request to create a container, under the names of its API; "
        "mappings are merged, lists appended",
        examples=[{"HostConfig": {"IpcMode": "host"}}],
    )

    def keeps(self, path: str) -> bool:
        """Whether a file survives the worker that wrote it: yes, directories of checkpoints are mounted."""
        del path
        return True

    def mounts(self, path: str) -> bool:
        """Whether a worker's path is in a volume of the user's."""
        targets = [volume.partition(":")[2].partition(":")[0] for volume in self.volumes]
        return any(PurePath(path).is_relative_to(target) for target in targets)

    def refusal_of_ranks(self, ranks: int) -> str | None:
        """Return why a worker cannot have that many ranks: its container's limit of processes."""
        if self.resources.pids is None or ranks <= (most := self.resources.pids - AGENT_TASKS):
            return None
        left = f"must be at most {most}, which resources.pids leaves beside the agent, got {ranks}"
        return f"{left}; raise that limit, or write fewer"

    def lost_ranks_last_s(self) -> float | None:
        """Return how long ranks keep running when their system is lost: None, unknown."""
        return None

    def at(self, base: str) -> Self:
        """Return it with absolute paths; relative ones start at `base`."""
        volumes = tuple(
            f"{absolute(source, base)}:{target}" if source[0] in "./~" else f"{source}:{target}"
            for source, _, target in (volume.partition(":") for volume in self.volumes)
        )
        return self.model_copy(update={"volumes": volumes})
