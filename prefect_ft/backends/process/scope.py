"""Who ends this process's whole control group: then agents die with the orchestrator, and nothing is adopted.

systemd does it to a unit that stops (KillMode=control-group, its default), Slurm to a step, Kubernetes and
container engines to a container. Out of a systemd unit agents can move, into a scope of their own.
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
"""The user's own manager, in which the units of a session lie."""

_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
"""What Docker and Podman put into their containers."""

_PROBE_TIMEOUT_S = 5.0


def shared_fate(cgroup: str, env: Mapping[str, str], *, is_container: bool = False) -> str | None:
    """Return whose end is everything's end, in words; None: nobody's that is known.

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
    """Return the systemd service that a process belongs to, None if it is none's."""
    units = [name for name in _UNIT.findall(cgroup) if not _MANAGER.fullmatch(name)]
    return units[-1] if units else None


def agent_prefix() -> tuple[str, ...]:
    """Return the words before an agent's command that move it into a scope of its own; none where not needed."""
    return _scope() if service_unit(_own_cgroup()) else ()


def fate() -> str | None:
    """Return whose end will be that of the agents as well, None if they outlive the orchestrator."""
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
    """Return systemd-run's words for a scope, if it makes one for this user now; tried once."""
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
    """Return the words that begin a call of systemd-run: by them it asks a manager that makes scopes for this user.

    A system unit that runs as a user does not know where that user's own manager is. It is asked only where the user
    lingers: else it ends with the user's last login, and all its scopes with it.
    """
    if os.getuid() == 0:
        return (program,)
    if "XDG_RUNTIME_DIR" in os.environ or not _lingers():
        return (program, "--user")
    return ("/usr/bin/env", f"XDG_RUNTIME_DIR=/run/user/{os.getuid()}", program, "--user")


def _lingers() -> bool:
    """Whether systemd keeps a manager of this user's own while the user is not logged in."""
    try:
        return os.path.exists(f"/var/lib/systemd/linger/{pwd.getpwuid(os.getuid()).pw_name}")
    except KeyError:  # a user without a name
        return False
