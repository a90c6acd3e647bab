"""What a pool of container engines must have before a run begins: looked at, and images gotten."""

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
                told = _told_of(client, url)
                _check_owner(url, told, place)
                _check_resources(url, told, infrastructure, field)
                found = engine.interpreter(client, url, infrastructure)
                _check_users(url, told, infrastructure, found.uid, field)
            except BackendError as exc:
                raise ConfigError(str(exc), field=f"{field}.image") from exc


def _told_of(client: engine.Client, url: str) -> dict[str, Any]:
    with engine.told(url):
        return dict(client.info())


def _has(told: dict[str, Any], option: str) -> bool:
    """Whether an engine names this among its security options, which are like `name=seccomp,profile=default`."""
    return any(f"name={option}" in each.split(",") for each in told.get("SecurityOptions") or ())


def _check_owner(url: str, told: dict[str, Any], field: str) -> None:
    """Refuse another user's rootless engine: it cannot mount what belongs to this user."""
    if not is_here(url) or not _has(told, "rootless"):
        return
    owner = os.stat(url.removeprefix("unix://")).st_uid
    if owner != os.getuid():
        message = f"the engine at {url} is a rootless one of user {owner}, and cannot mount files of user {os.getuid()}"
        raise ConfigError(f"{message}: run this as user {owner}, or name another engine", field=field)


def _check_resources(
    url: str, told: dict[str, Any], infrastructure: DockerInfrastructure, field: str
) -> None:
    """Refuse limits that the engine would leave out without a word."""
    if told.get("CgroupDriver") == "none" and infrastructure.resources.model_fields_set:
        message = f"the engine at {url} runs without control groups and would set none of these limits"
        raise ConfigError(
            f"{message}: leave them out, or start it where control groups of version 2 are delegated to it",
            field=f"{field}.resources",
        )


def _check_users(
    url: str, told: dict[str, Any], infrastructure: DockerInfrastructure, uid: int, field: str
) -> None:
    """Refuse users whose numbers the engine maps to others that cannot use what is mounted for an agent."""
    if not is_here(url):
        return
    if _has(told, "rootless") and uid != 0:
        message = (
            f"its containers run as user {uid}: on a rootless engine root in a container is who runs this"
        )
        raise ConfigError(f'{message}: write user: "0"', field=f"{field}.user")
    mode = infrastructure.create.get("HostConfig", {}).get("UsernsMode")
    if _has(told, "userns") and mode != "host":
        message = (
            f"the engine at {url} maps users (userns-remap): an agent cannot read what is mounted for it"
        )
        raise ConfigError(f"{message}: write create: {{HostConfig: {{UsernsMode: host}}}}", field=field)
