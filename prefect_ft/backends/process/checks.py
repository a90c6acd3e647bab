"""Checks of a phase with ranks on this machine, before they are started."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping

from prefect_ft.amounts import count
from prefect_ft.backends.process.capacity import most_ranks, this_machine
from prefect_ft.backends.process.scope import agent_prefix
from prefect_ft.config import Phase
from prefect_ft.errors import ConfigError

_INTERPRETERS = {".py": "python"}
"""Interpreters of scripts that are not executable, by the suffix; otherwise bash."""


def check_directory(phase: Phase, field: str) -> None:
    """Raise ConfigError where the directory does not exist."""
    if not os.path.isdir(phase.cwd or "."):
        raise ConfigError(f"{phase.cwd} is not a directory", field=field)


def check_ranks(phase: Phase, workers: int, field: str) -> None:
    """Raise ConfigError for more ranks than this machine can start: all workers of the process backend are on it."""
    ranks = phase.nproc_per_worker
    if ranks == "auto":
        return
    limit = most_ranks(this_machine(is_grouped=not agent_prefix()), workers)
    if limit is None or ranks <= limit.ranks:
        return
    where = count(ranks, "rank") if workers == 1 else f"{count(ranks, 'rank')} in each of {workers} workers"
    remedy = (
        f"write {limit.ranks} or fewer, or raise it"
        if limit.ranks > 0
        else "raise it, or write fewer workers"
    )
    raise ConfigError(f"{where} cannot be started here: {limit.why}; {remedy}", field=field)


def check_command(phase: Phase, env: Mapping[str, str], field: str) -> None:
    """Raise ConfigError where the command cannot be executed, with what to write instead."""
    name = (phase.launched or phase).command[0]
    if name == "python":
        return
    directory = phase.cwd or "."
    path = os.path.join(directory, name) if "/" in name else name
    if shutil.which(path, path=env.get("PATH")) is not None:
        return
    there = shutil.which(path, mode=os.F_OK, path=env.get("PATH")) or path
    if os.path.isfile(there):
        by_its_interpreter = json.dumps([_INTERPRETERS.get(os.path.splitext(name)[1], "bash"), name])
        remedy = f"chmod +x {there}, or write command: {by_its_interpreter} with the words that follow"
        raise ConfigError(f"{name!r} is not executable; {remedy}", field=field)
    if "/" in name and os.path.isdir(there):
        raise ConfigError(f"{name!r} is a directory; write a program that is in it", field=field)
    if "/" not in name and os.path.isfile(os.path.join(directory, name)):
        remedy = f"it is not on PATH, and lies in {directory}: write ./{name}"
    else:
        remedy = f"write a program that is on PATH, or a path from {directory}"
    raise ConfigError(f"command not found: {name!r}; {remedy}", field=field)
