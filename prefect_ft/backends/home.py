"""A worker's directory on this machine: its name, its agent's configuration, and what the agent leaves there.

`<run-time directory>/<phase>-<number>-<epoch>-<decision>` holds agent.json, the socket, output, heartbeats.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from prefect_ft.backends.base import Address, AgentSettings, Found, Worker, place_of
from prefect_ft.files import read_json
from prefect_ft.formats import this_version
from prefect_ft.worker.agent import LEFT
from prefect_ft.worker.checkpoints.names import place_on
from prefect_ft.worker.keys import verifiers_of

SOCKET = "agent.sock"
CONFIG = "agent.json"

_HOST = "host"
"""The file with the name by which other workers reach this one; missing: it is on this machine."""


def home_of(directory: Path, phase_index: int, worker: Worker) -> Path:
    """Return the place of a worker's directory below the run's run-time directory."""
    return directory / place_of(phase_index, worker)


def write_agent_config(
    home: Path, settings: AgentSettings, worker: Worker, *, system_lock: Path | None = None
) -> Path:
    """Write the agent's configuration, readable for this user alone; return the path."""
    config = home / CONFIG
    config.touch(mode=0o600)
    config.write_text(json.dumps(agent_config(home, settings, worker, system_lock=system_lock)))
    return config


def agent_config(
    home: PurePath,
    settings: AgentSettings,
    worker: Worker,
    *,
    system_lock: Path | None = None,
    network: Mapping[str, Any] | None = None,
    notice_s: float = 0.0,
) -> dict[str, Any]:
    """Return the configuration of the agent whose directory is `home`.

    With `network` (port, certificate, silence_timeout_s, partition_timeout_s, api) it listens there too; `fd` in it is
    the descriptor of a socket that listens already.
    `notice_s` is how long it may take to exit after SIGTERM; 0: it exits at once.
    """
    return {
        "run": settings.run_id,
        "verifiers": verifiers_of(settings.key, place_of(settings.phase_index, worker)),
        "epoch": worker.epoch,
        "worker": worker.number,
        "system": worker.system,
        "directory": str(home),
        "socket": str(home / SOCKET),
        "orchestrator_uid": os.getuid(),
        "sample_period_s": settings.sample_period_s,
        "orphan_timeout_s": settings.orphan_timeout_s,
        "spool_bytes": settings.spool_bytes,
        "output": settings.output,
        "signs": list(settings.signs),
        "device_command": settings.device_command,
        "detect": settings.detect,
        "checkpoints": _checkpoints(settings.checkpoints, worker),
        "rendezvous": settings.rendezvous if worker.number == 0 else None,
        "warm": settings.warm,
        "system_lock": str(system_lock) if system_lock else None,
        "network": network,
        "notice_s": notice_s,
        "release": this_version(),
    }


def _checkpoints(checkpoints: Mapping[str, Any] | None, worker: Worker) -> Mapping[str, Any] | None:
    """Return where a worker's agent looks for checkpoints; None: another worker's agent does."""
    if checkpoints is None or not checkpoints.get("local"):
        return checkpoints if worker.number == 0 else None
    return {**checkpoints, "path": place_on(checkpoints["path"], worker.system)}


def write_host(home: Path, host: str) -> None:
    """Store the name by which other workers reach this one."""
    (home / _HOST).write_text(host)


def address_of(home: Path) -> Address:
    """Return where a worker's agent listens."""
    kept = home / _HOST
    host = kept.read_text() if kept.exists() else "127.0.0.1"
    return Address(socket_path=home / SOCKET, host=host)


def found_in(directory: Path, phase_index: int) -> list[Found]:
    """Return the workers of a phase that have directories, in the order of epoch and decision."""
    found = [_found(home) for home in directory.glob(f"{phase_index}-*-*-*")]
    return sorted(found, key=lambda each: (each.worker.epoch, each.worker.decision, each.worker.number))


def _found(home: Path) -> Found:
    _, number, epoch, decision = map(int, home.name.split("-"))
    system = read_json(home / CONFIG).get("system", "")
    worker = Worker(number=number, system=system, epoch=epoch, decision=decision)
    return Found(worker=worker, address=address_of(home), result=read_json(home / LEFT) or None)
