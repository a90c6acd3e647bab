"""What kills this process's whole control group: then agents die with the orchestrator, and nothing can be adopted.

systemd does it to a unit that stops (KillMode=control-group, its default), Slurm to a step, Kubernetes and
container engines to a container. From a systemd unit agents can move to a scope of their own.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_UNIT = re.compile(r"/([^/]+\.service)(?:/|$)")
_MANAGER = re.compile(r"user@\d+\.service")
"""The user's service manager, which contains the units of a session."""

_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
"""Files that Docker and Podman create in their containers."""

_PROBE_TIMEOUT_S = 5.0


def shared_fate(cgroup: str, env: Mapping[str, str], *, is_container: bool = False) -> str | None:
    """Describe what takes all processes in a control group with it when it ends; None: nothing known.

    `cgroup` is the content of /proc/self/cgroup, which may hide a container; `env` this process's
    environment.
    """
    if "SLURM_STEP_ID" in env or "/slurm" in cgroup:
        return "the Slurm step"
    if "KUBERNETES_SERVICE_HOST" in env or "kubepods" in cgroup:
        return "the pod"
    if unit := service_unit(cgroup):
        return f"the systemd unit {unit}"
    if is_container or re.search(r"/(docker|libpod|containerd|lxc)[-/]", cgroup):
        return "the container"
    return None


def service_unit(cgroup: str) -> str | None:
    """Return the systemd service that a process belongs to; None: it belongs to none."""
    units = [name for name in _UNIT.findall(cgroup) if not _MANAGER.fullmatch(name)]
    return units[-1] if units else None


def agent_prefix() -> tuple[str, ...]:
    """Return the command prefix that moves an agent into a scope of its own; empty where not needed."""
    return _scope() if service_unit(_own_cgroup()) else ()


def own_shared_fate() -> str | None:
    """Describe what kills the agents together with this process; None: they outlive it."""
    is_container = any(map(os.path.exists, _CONTAINER_MARKS))
    return None if agent_prefix() else shared_fate(_own_cgroup(), os.environ, is_container=is_container)


@cache
def _own_cgroup() -> str:
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""


@cache
def _scope() -> tuple[str, ...]:
    """Return the systemd-run command for a scope, if it can make one for this user; tried once."""
    program = shutil.which("systemd-run")
    if program is None:
        return ()
    words = (*_to_manager(program), "--scope", "--quiet", "--collect", "--")
    try:
        made = subprocess.run(
            [*words, "true"], capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return words if made == 0 else ()


def _to_manager(program: str) -> tuple[str, ...]:
    """Return the start of a systemd-run command, which reaches a manager that makes scopes for this user.

    A system unit that runs as a user does not know where that user's manager is. That one is used only where the user
    lingers: otherwise it ends with the user's last login, and all its scopes with it.
    """
    if os.getuid() == 0:
        return (program,)
    if "XDG_RUNTIME_DIR" in os.environ or not _lingers():
        return (program, "--user")
    return ("/usr/bin/env", f"XDG_RUNTIME_DIR=/run/user/{os.getuid()}", program, "--user")


def _lingers() -> bool:
    """Whether systemd keeps this user's manager running without a login."""
    try:
        return os.path.exists(f"/var/lib/systemd/linger/{pwd.getpwuid(os.getuid()).pw_name}")
    except KeyError:  # a user without a name
        return False
