"""The environment and the command with which ranks are started."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List

from prefect_ft.worker import PACKAGE_DIRECTORY


def of_ranks(given: Dict[str, str]) -> Dict[str, str]:
    """Return the ranks' common environment: the worker's own, `given`, and the path of this package."""
    env = {"PYTHONUNBUFFERED": "1", **os.environ, **given}
    path = (PACKAGE_DIRECTORY, env.get("PYTHONPATH"))
    env["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
    return env


def with_python(command: List[str], env: Dict[str, str]) -> List[str]:
    """Replace `python` by this interpreter where the worker has no `python`: many images have only python3."""
    places = env.get("PATH", os.defpath).split(os.pathsep)
    if command[0] != "python" or any(os.access(os.path.join(place, "python"), os.X_OK) for place in places):
        return command
    return [sys.executable, *command[1:]]


def failure(error: Exception, command: str) -> Dict[str, Any]:
    """Return the fields that say why ranks could not be started; `what` is the path at fault."""
    if isinstance(error, OSError):
        what = os.fsdecode(error.filename) if error.filename else command
        return {"errno": error.errno, "error": error.strerror or str(error), "what": what}
    return {"errno": None, "error": str(error), "what": command}
