"""Finds out from its engine how a container has ended, or why a process in it has."""

from __future__ import annotations

import time
from typing import Any

from prefect_ft.backends.base import USED_UP
from prefect_ft.backends.docker import engine
from prefect_ft.backends.docker.engines import Engines
from prefect_ft.errors import BackendError
from prefect_ft.model import Evidence

NOTICE_TIMEOUT_S = 2.0
"""How long an engine may take to notice that a container's first process has ended."""

OOM_WINDOW_S = 30.0
"""How long ago a container may have run out of memory for that to explain a rank's death now."""

POLL_S = 0.002


def evidence_of(engines: Engines, system: str, name: str, *, is_gone: bool) -> Evidence | None:
    """Return what a system's engine knows about what just ended in a container; None: nothing.

    `is_gone`: the container's agent itself ended.
    """
    try:
        with engines.client(system) as client:
            container = _settled(client, name, is_gone=is_gone)
            is_oom = container is not None and _ran_out_of_memory(client, name)
    except BackendError as exc:
        return Evidence(rule="engine-away", text=str(exc))
    if container is None or container["State"]["Status"] == "removing":
        return Evidence(rule="container-removed", text="its container was removed from outside")
    if is_oom:
        return USED_UP
    if not container["State"]["Running"]:
        text = f"its container has ended with exit code {container['State']['ExitCode']}"
        return Evidence(rule="container-ended", text=text)
    return None


def _settled(client: engine.Client, name: str, *, is_gone: bool) -> dict[str, Any] | None:
    """Return the engine's description of a container; `is_gone`: wait until it has noticed the agent's end."""
    deadline = time.monotonic() + (NOTICE_TIMEOUT_S if is_gone else 0)
    while True:
        container = engine.inspect(client, name)
        if container is None or not container["State"]["Running"] or time.monotonic() > deadline:
            return container
        time.sleep(POLL_S)


def _ran_out_of_memory(client: engine.Client, name: str) -> bool:
    """Whether the engine has reported it lately: the container's own flag is never reset."""
    now = time.time()
    since, until = f"{now - OOM_WINDOW_S:.6f}", f"{now:.6f}"
    events = client.events(since, until, filters={"container": name, "event": "oom"}, decode=True)
    return any(True for _ in events)
