"""Builds the engine's request to create a worker's container. Pure: sends nothing.

Names are those of the Engine API (`POST /containers/create`). Everything that the agent needs is set here and
nowhere else; the user's additions under `create` are merged in last.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from prefect_ft.backends.docker.config import DockerInfrastructure, DockerSystem
from prefect_ft.backends.docker.fields import DeviceRequest
from prefect_ft.backends.labels import Labels
from prefect_ft.config import given_in

LABELS = Labels("prefect-ft.")

Request = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """Paths of this machine in a worker's container, each at the same path there.

    `home` is the worker's own directory, `payload` the code of its agent, `binds` are further mounts
    as HOST:CONTAINER[:ro]. `is_copied`: the first two are copied in, because the engine is elsewhere.
    `private` is a directory of this machine that is hidden from containers, whatever they mount.
    """

    home: str
    payload: str
    binds: Sequence[str] = ()
    is_copied: bool = False
    private: str | None = None


def create_request(
    infrastructure: DockerInfrastructure,
    system: DockerSystem,
    labels: Mapping[str, str],
    *,
    python: str,
    mounted: Mounted,
) -> Request:
    """Build the request for one worker; `python` is the interpreter's name in the image."""
    request = {
        "Image": infrastructure.image,
        "Entrypoint": [python],
        "Cmd": ["-I", "-S", mounted.payload, str(PurePath(mounted.home, "agent.json"))],
        "Env": [f"{name}={value}" for name, value in given_in({**infrastructure.env, **system.env}).items()],
        "Labels": dict(labels),
        "User": infrastructure.user,
        "HostConfig": _host_config(infrastructure, system, mounted),
    }
    whole: Request = merged(_without_unset(request), infrastructure.create)
    return whole


def _host_config(
    infrastructure: DockerInfrastructure, system: DockerSystem, mounted: Mounted
) -> dict[str, Any]:
    resources = infrastructure.resources
    requests = infrastructure.device_requests if system.device_requests is None else system.device_requests
    devices = infrastructure.devices if system.devices is None else system.devices
    own = [f"{mounted.home}:{mounted.home}", f"{mounted.payload}:{mounted.payload}:ro"]
    binds = [*([] if mounted.is_copied else own), *mounted.binds, *infrastructure.volumes]
    config = {
        "Binds": binds,
        "Tmpfs": dict.fromkeys(_places_of(mounted.private, binds), "size=4k"),
        "NetworkMode": infrastructure.network,
        "NanoCpus": None if resources.cpus is None else round(resources.cpus * 10**9),
        "CpusetCpus": resources.cpuset,
        "Memory": resources.memory,
        "PidsLimit": resources.pids,
        "ShmSize": infrastructure.shm_size,
        "Ulimits": [_ulimit(name, limit) for name, limit in infrastructure.ulimits.items()],
        "DeviceRequests": [_device_request(each) for each in requests],
        "Devices": [_device(each) for each in devices],
        "CapAdd": list(infrastructure.cap_add),
        "CapDrop": list(infrastructure.cap_drop),
        "SecurityOpt": ["no-new-privileges"] if infrastructure.no_new_privileges else [],
    }
    return _without_unset(config)


def _places_of(directory: str | None, binds: Sequence[str]) -> list[str]:
    """Return where a directory of this machine would appear in the container; an empty one hides it there."""
    if directory is None:
        return []
    pairs = (bind.split(":")[:2] for bind in binds)
    return [
        os.path.normpath(os.path.join(target, os.path.relpath(directory, source)))
        for source, target in pairs
        if os.path.isabs(source) and os.path.commonpath((source, directory)) == os.path.normpath(source)
    ]


def _ulimit(name: str, limit: str) -> dict[str, Any]:
    soft, _, hard = limit.partition(":")
    return {"Name": name, "Soft": int(soft), "Hard": int(hard or soft)}


def _device(device: str) -> dict[str, str]:
    host, _, rest = device.partition(":")
    inside, _, permissions = rest.partition(":")
    return {
        "PathOnHost": host,
        "PathInContainer": inside or host,
        "CgroupPermissions": permissions or "rwm",
    }


def _device_request(request: DeviceRequest) -> dict[str, Any]:
    """Return a request for devices; without a count or ids it is for all, as in Docker's own client."""
    count = -1 if request.count is None and not request.device_ids else request.count
    return _without_unset(
        {
            "Driver": request.driver,
            "Count": count,
            "DeviceIDs": list(request.device_ids),
            "Capabilities": [list(each) for each in request.capabilities],
            "Options": dict(request.options),
        }
    )


def merged(ours: Any, theirs: Any) -> Any:
    """Return `ours` with `theirs` in it: mappings are merged, lists appended, anything else is replaced."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {
            **ours,
            **{name: merged(ours[name], theirs[name]) if name in ours else theirs[name] for name in theirs},
        }
    if isinstance(ours, list) and isinstance(theirs, (list, tuple)):
        return [*ours, *theirs]
    return theirs


def _without_unset(given: dict[str, Any]) -> dict[str, Any]:
    """Leave out unset fields: the engine's defaults apply."""
    return {name: value for name, value in given.items() if value is not None and value not in ([], {})}
