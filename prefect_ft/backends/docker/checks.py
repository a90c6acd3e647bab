"""Checks of a pool of container engines before a run begins; pulls missing images."""

from __future__ import annotations

import os
from contextlib import closing
from typing import Any

from prefect_ft.backends.docker import engine
from prefect_ft.backends.docker.config import DockerInfrastructure
from prefect_ft.backends.docker.transport import is_here
from prefect_ft.errors import BackendError, ConfigError


def check_systems(infrastructure: DockerInfrastructure, field: str) -> None:
    """Raise ConfigError for the first system on which no worker could be created.

    `field` is the infrastructure's own.
    """
    seen: set[str] = set()
    for index, system in enumerate(infrastructure.systems):
        place = f"{field}.systems[{index}].engine" if system.engine else f"{field}.engine"
        try:
            url = engine.engine_url(infrastructure, system)
            if url in seen:
                continue
            client = engine.connect(url)
        except BackendError as exc:
            raise ConfigError(str(exc), field=place) from exc
        seen.add(url)
        with closing(client):
            try:
                info = _engine_info(client, url)
                _check_owner(url, info, place)
                _check_resources(url, info, infrastructure, field)
                found = engine.interpreter(client, url, infrastructure)
                _check_users(url, info, infrastructure, found.uid, field)
            except BackendError as exc:
                raise ConfigError(str(exc), field=f"{field}.image") from exc


def _engine_info(client: engine.Client, url: str) -> dict[str, Any]:
    with engine.translated_errors(url):
        return dict(client.info())


def _has(info: dict[str, Any], option: str) -> bool:
    """Whether an engine lists this security option; they look like `name=seccomp,profile=default`."""
    return any(f"name={option}" in each.split(",") for each in info.get("SecurityOptions") or ())


def _check_owner(url: str, info: dict[str, Any], field: str) -> None:
    """Refuse another user's rootless engine: it cannot mount this user's files."""
    if not is_here(url) or not _has(info, "rootless"):
        return
    owner = os.stat(url.removeprefix("unix://")).st_uid
    if owner != os.getuid():
        message = f"the engine at {url} is a rootless one of user {owner}, and cannot mount files of user {os.getuid()}"
        raise ConfigError(f"{message}: run this as user {owner}, or name another engine", field=field)


def _check_resources(
    url: str, info: dict[str, Any], infrastructure: DockerInfrastructure, field: str
) -> None:
    """Refuse limits that the engine would silently ignore."""
    if info.get("CgroupDriver") == "none" and infrastructure.resources.model_fields_set:
        message = f"the engine at {url} runs without control groups and would set none of these limits"
        raise ConfigError(
            f"{message}: leave them out, or start it where control groups of version 2 are delegated to it",
            field=f"{field}.resources",
        )


def _check_users(
    url: str, info: dict[str, Any], infrastructure: DockerInfrastructure, uid: int, field: str
) -> None:
    """Refuse users whose ids the engine maps to others that cannot read an agent's mounts."""
    if not is_here(url):
        return
    if _has(info, "rootless") and uid != 0:
        message = (
            f"its containers run as user {uid}: on a rootless engine root in a container is who runs this"
        )
        raise ConfigError(f'{message}: write user: "0"', field=f"{field}.user")
    mode = infrastructure.create.get("HostConfig", {}).get("UsernsMode")
    if _has(info, "userns") and mode != "host":
        message = (
            f"the engine at {url} maps users (userns-remap): an agent cannot read what is mounted for it"
        )
        raise ConfigError(f"{message}: write create: {{HostConfig: {{UsernsMode: host}}}}", field=field)
