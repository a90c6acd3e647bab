"""Calls to Docker engines: connections, images, interpreters, containers.

Failures raise BackendError, whose text says what to do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from requests.exceptions import RequestException

from prefect_ft.backends.docker.config import DockerInfrastructure, DockerSystem
from prefect_ft.backends.docker.fields import ENGINE
from prefect_ft.backends.docker.transport import client_arguments, unreachable
from prefect_ft.errors import BackendError

Client: TypeAlias = Any
"""The SDK's `docker.APIClient`, of which only a part is typed."""

DEFAULT = "unix:///var/run/docker.sock"

OLDEST, MIN_API = "1.41", (1, 41)
"""The API of Docker 20.10, the oldest engine that was tested."""

TIMEOUT_S = 60
"""How long an engine may take to answer; creating and removing can take seconds on a busy one."""

PING_TIMEOUT_S = 2
"""How long an engine may take to answer a ping."""

MIN_PYTHON = (3, 9)

_PROBE = "import os, sys; print(sys.version_info[0], sys.version_info[1], os.getuid(), os.getgid())"
_PROBE_LABEL = "prefect-ft.probe"
PYTHONS = ("python3", "python")
"""Names under which an image may have its interpreter, tried in this order."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An image's Python, by its name there, and the user that it runs as."""

    name: str
    uid: int
    gid: int


def engine_url(infrastructure: DockerInfrastructure, system: DockerSystem) -> str:
    """Return the URL of a system's engine."""
    url = system.engine or infrastructure.engine or os.environ.get("DOCKER_HOST") or DEFAULT
    if not re.fullmatch(ENGINE, url):
        raise BackendError(f"DOCKER_HOST is {url}: write unix://PATH, tcp://HOST:PORT or ssh://USER@HOST")
    return url


def connect(url: str) -> Client:
    """Return a client of an engine; raises BackendError where it does not answer or is too old."""
    if why := unreachable(url):
        raise BackendError(why)
    with translated_errors(url):
        return _client(url, _api_version(url), TIMEOUT_S)


def _client(url: str, version: str, timeout_s: int) -> Client:
    client: Client = docker.APIClient(**client_arguments(url), version=version, timeout=timeout_s)
    client.trust_env = False  # else REQUESTS_CA_BUNDLE replaces the engine's own authority
    return client


@cache
def _api_version(url: str) -> str:
    """Return the API version of an engine, asked once."""
    with closing(_client(url, OLDEST, TIMEOUT_S)) as client:
        version = str(client.version(api_version=False)["ApiVersion"])
    if tuple(map(int, version.split("."))) < MIN_API:
        raise BackendError(
            f"the engine at {url} speaks API {version}: {OLDEST} is needed, Docker 20.10 or newer"
        )
    return version


def answers(url: str) -> bool:
    """Whether an engine answers."""
    if unreachable(url):
        return False
    try:
        with closing(_client(url, OLDEST, PING_TIMEOUT_S)) as client:
            return bool(client.ping())
    except (BackendError, DockerException, RequestException, OSError):
        return False


@contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """Turn errors of an engine and its client into BackendError."""
    try:
        yield
    except APIError as exc:
        explanation = exc.explanation or str(exc)
        raise BackendError(f"the engine at {url} refused: {_one_line(explanation)}") from exc
    except (DockerException, RequestException, OSError) as exc:
        why = unreachable(url) or f"the engine at {url} fails: {_one_line(exc)}"
        raise BackendError(why) from exc


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def image_id(client: Client, url: str, image: str, pull: str) -> str:
    """Return the id of an image, pulled according to `pull`."""
    why = "and `pull: never` forbids to get it"
    if pull == "always" or (pull == "missing" and not _has_image(client, image)):
        try:
            client.pull(image)
        except (APIError, RequestException) as exc:
            why = f"and cannot be pulled: {_one_line(getattr(exc, 'explanation', None) or exc)}"
        else:
            why = "and its registry did not give it"
    try:
        return str(client.inspect_image(image)["Id"])
    except ImageNotFound as exc:
        raise BackendError(f"image {image} is not on the engine at {url}, {why}") from exc


def _has_image(client: Client, image: str) -> bool:
    with suppress(ImageNotFound):
        client.inspect_image(image)
        return True
    return False


def interpreter(client: Client, url: str, infrastructure: DockerInfrastructure) -> Interpreter:
    """Return the Python of an infrastructure's image, pulling the image first; cached."""
    with translated_errors(url):
        identity = image_id(client, url, infrastructure.image, infrastructure.pull)
    return _interpreter(url, identity, infrastructure.user, infrastructure.image)


@cache
def _interpreter(url: str, identity: str, user: str | None, image: str) -> Interpreter:
    """Look for an interpreter. Raises BackendError, which is not cached: the engine may have failed for a moment."""
    with translated_errors(url), closing(connect(url)) as client:
        for name in PYTHONS:
            if (found := _probe_interpreter(client, identity, user, name)) is not None:
                return found
    wanted = ".".join(map(str, MIN_PYTHON))
    raise BackendError(
        f"image {image} has no Python {wanted} or newer on its PATH as {' or '.join(PYTHONS)}: "
        "the agent in the container needs one"
    )


def _probe_interpreter(client: Client, identity: str, user: str | None, name: str) -> Interpreter | None:
    """Run an interpreter in a container of its own; None: it is missing, too old, or not Python."""
    request = {
        "Image": identity,
        "Entrypoint": [name],
        "Cmd": ["-I", "-S", "-c", _PROBE],
        "Labels": {_PROBE_LABEL: str(os.getpid())},
        "HostConfig": {"NetworkMode": "none"},
    }
    probe = client.create_container_from_config({**request, **({"User": user} if user else {})}, None)["Id"]
    try:
        client.start(probe)
        if client.wait(probe, timeout=TIMEOUT_S)["StatusCode"] != 0:
            return None
        major, minor, uid, gid = map(int, client.logs(probe, stdout=True, stderr=False).split())
    except (APIError, ValueError) as exc:
        if isinstance(exc, APIError) and _names_no_such_user(exc):
            raise
        return None
    finally:
        remove(client, probe)
    return Interpreter(name, uid, gid) if (major, minor) >= MIN_PYTHON else None


def _names_no_such_user(error: APIError) -> bool:
    explanation = str(error.explanation)
    return any(
        each in explanation
        for each in ("unable to find user", "unable to find group", "unable to setup user")
    )


def remove(client: Client, name: str) -> None:
    """Remove a container with its processes and anonymous volumes. Idempotent."""
    with suppress(NotFound):
        try:
            client.remove_container(name, v=True, force=True)
        except APIError as exc:
            if exc.status_code != 409:  # its removal is already in progress
                raise
            client.wait(name, condition="removed", timeout=TIMEOUT_S)


def inspect(client: Client, name: str) -> dict[str, Any] | None:
    """Return an engine's description of a container; None: there is no such container."""
    with suppress(NotFound):
        return dict(client.inspect_container(name))
    return None
