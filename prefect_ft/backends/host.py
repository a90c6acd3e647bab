"""What this machine gives to the processes started on it: its environment and its accelerators."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def inherited_environment() -> dict[str, str]:
    """Return this process's environment without what belongs to its own Prefect run."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}


def visible_accelerators(env: Mapping[str, str]) -> int:
    """Return how many accelerators a process with this environment sees; 0 if there are none.

    Variables as CUDA, ROCm and CANN document them; device files as their drivers make them.
    """
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        if name in env:
            return len([device for device in env[name].split(",") if device.strip() not in ("", "-1")])
    files = [path.name for path in Path("/dev").iterdir()]
    return max(
        len([name for name in files if name.startswith(prefix) and name.removeprefix(prefix).isdigit()])
        for prefix in ("nvidia", "davinci")
    )
