"""The kinds of value that describe a container: sizes, volumes, devices, and where its engine is."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from prefect_ft.config.fields import (
    MAX_RANKS,
    Env,
    NotBool,
    Section,
    Text,
    path_problem,
    problem,
    shown,
)
from prefect_ft.config.images import Size

_MAX_PIDS = 1 << 22
"""Linux's own limit."""

_MAX_PROCESSORS = 8192
"""The most that Linux can be built for."""

ENGINE = r"unix:///.+|tcp://[^/@:]+:[0-9]+|ssh://([^/@:]+@)?[^/@:-][^/@:]*(:[0-9]+)?(/.+)?"
"""A socket of this machine, TCP with TLS, or SSH, with the path of the engine's socket there."""

OWNED = ("Image", "Entrypoint", "Cmd")
"""Parts of a request that have fields of their own, or belong to the agent."""

OWNED_BY_HOST = ("RestartPolicy", "AutoRemove")
"""Only the run's orchestrator restarts or removes a worker."""


def _engine(value: str) -> str:
    if not re.fullmatch(ENGINE, value):
        example = "like unix:///var/run/docker.sock, tcp://HOST:2376 or ssh://USER@HOST"
        raise problem(f"must be an engine's address, {example}, got {shown(value)}")
    return value


def _volume(value: str) -> str:
    source, _, target = value.removesuffix(":ro").removesuffix(":rw").partition(":")
    if not source or not target.startswith("/") or ":" in target:
        raise problem(
            f"must be HOST:CONTAINER or HOST:CONTAINER:ro, like ./data:/data:ro, got {shown(value)}"
        )
    if message := path_problem(source):
        raise problem(message)
    return value


def _device(value: str) -> str:
    if not re.fullmatch(r"/[^:]+(:/[^:]+(:[rwm]+)?)?", value):
        raise problem(f"must be a device file, like /dev/davinci0 or /dev/a:/dev/b:rw, got {shown(value)}")
    return value


def _ulimits(value: dict[str, str]) -> dict[str, str]:
    for name, limit in value.items():
        if not re.fullmatch(r"(-1|[0-9]+)(:(-1|[0-9]+))?", limit):
            raise problem(f"must be a number or SOFT:HARD, like 1024:65536, got {shown(limit)}", name)
    return value


def _create(value: dict[str, Any]) -> dict[str, Any]:
    for name in OWNED:
        if name in value:
            raise problem("must not be set here: image says what runs, and the agent runs it", name)
    host = value.get("HostConfig", {})
    if not isinstance(host, dict):
        raise problem(f"must be a mapping of keys to values, got {shown(host)}", "HostConfig")
    for name in OWNED_BY_HOST:
        if name in host:
            raise problem("must not be set: autorestart says what is brought back", "HostConfig", name)
    return value


EngineUrl = Annotated[Text, AfterValidator(_engine)]
Volume = Annotated[Text, AfterValidator(_volume)]
DeviceMapping = Annotated[Text, AfterValidator(_device)]
Ulimits = Annotated[Env, AfterValidator(_ulimits)]
Create = Annotated[dict[str, Any], AfterValidator(_create)]


class Resources(Section):
    """What one worker may use; absent: as much as there is."""

    cpus: Annotated[float, Field(gt=0, le=_MAX_PROCESSORS, allow_inf_nan=False)] | None = Field(
        default=None, description="Processors' time, in processors"
    )
    cpuset: Text | None = Field(default=None, description="Processors by number", examples=["0-3,8"])
    memory: Size | None = Field(
        default=None, description="Memory: bytes, or a number with k, m or g", examples=["64g"]
    )
    pids: Annotated[int, Field(ge=2, le=_MAX_PIDS), NotBool] | None = Field(
        default=None, description="Processes and threads, the agent's included"
    )


class DeviceRequest(Section):
    """Devices that a driver of the engine's finds by itself."""

    driver: Text | None = Field(
        default=None, description="Name of the driver; absent: the engine chooses", examples=["nvidia"]
    )
    count: Annotated[int, Field(ge=-1, le=MAX_RANKS), NotBool] | None = Field(
        default=None, description="How many; -1: all"
    )
    device_ids: tuple[Text, ...] = Field(default=(), description="Which ones, in place of a count")
    capabilities: tuple[tuple[Text, ...], ...] = Field(
        default=(("gpu",),), description="What they must be able to do: one of these lists, all of it"
    )
    options: Env = Field(default={}, description="Further options of the driver")
