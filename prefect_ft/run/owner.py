"""The process that holds a run, identified so that a reused pid is never mistaken for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from prefect_ft.worker.processes import started


@dataclass(frozen=True, slots=True)
class Owner:
    """A unique process: pids are reused, but not with the same start time in the same boot.

    `boot` is the kernel's id of this boot, `pid_space` the namespace of the pid, `started`
    the clock ticks from boot to the process's start. `host` is for people.
    """

    host: str
    boot: str
    pid_space: str
    pid: int
    started: int

    def is_gone(self) -> bool | None:
        """Whether the process has ended; None where this process cannot see it."""
        if (self.boot, self.pid_space) != _here():
            return None
        return started(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def to_json(self) -> dict[str, Any]:
        """Return the process as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Owner | None:
        """Read the object; None if it is invalid."""
        if not isinstance(value, Mapping) or not set(cls.__dataclass_fields__) <= set(value):
            return None
        return cls(**{name: value[name] for name in cls.__dataclass_fields__})


def this_process() -> Owner:
    """Return this process."""
    pid = os.getpid()
    boot, pid_space = _here()
    return Owner(socket.gethostname(), boot, pid_space, pid, started(pid) or 0)


@cache
def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@cache
def _here() -> tuple[str, str]:
    return boot_id(), os.readlink("/proc/self/ns/pid")
