"""Assigns each system of this machine to one run at a time, by kernel locks, which end with their processes.

There is a file for each system beside the runs' run-time directories. A run takes a free system by an exclusive
lock, writes its name into the file and downgrades to a shared lock; each of its agents holds a shared one too. So a
system is free once neither orchestrator nor agent runs, and an orchestrator that comes back finds the run's own name.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from prefect_ft.errors import ConfigError, SystemHeldError
from prefect_ft.files import parse_json
from prefect_ft.run.runtime import made_runtime_directory

SYSTEMS = "systems"

SETTLED_S = 2.0
"""How long to wait for another run that is just taking a system: it takes milliseconds."""

_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Service:
    """The run that a system serves, by its file; empty where the file does not say."""

    run: str
    job: str
    model_dir: str


class HeldSystems:
    """The systems that a run holds in this process."""

    def __init__(self, descriptors: Iterable[int] = ()) -> None:
        self._descriptors = list(descriptors)

    def release(self) -> None:
        """Release them; systems with live agents still belong to the run. Idempotent."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def lock_path(runtime: Path, system: str) -> Path:
    """Return the file of a system; `runtime` is the run-time directory of any run."""
    return runtime.parent / SYSTEMS / system


def hold(root: Path, systems: Iterable[str], service: Service) -> HeldSystems:
    """Take systems, also those that serve the same run already; `root` holds the run-time directories.

    Raises SystemHeldError for the first that serves another run, and then holds none; raises ConfigError.
    """
    names = sorted(set(systems))
    if not names:
        return HeldSystems()
    directory = made_runtime_directory(root / SYSTEMS)
    held = [_locked_directory(directory)]
    try:
        held += [_locked(directory / name, service, takes=True) for name in names]
    except BaseException:
        HeldSystems(held).release()
        raise
    return HeldSystems(held)


def check(root: Path, systems: Iterable[str], run: str | None = None) -> None:
    """Raise SystemHeldError for the first system that serves a run other than `run`. Takes none."""
    for name in sorted(set(systems)):
        if (path := root / SYSTEMS / name).exists():
            os.close(_locked(path, Service(run or "", "", ""), takes=False))


def _locked(path: Path, service: Service, *, takes: bool) -> int:
    """Return a descriptor with a lock on a system's file; `takes`: also assign the system to the run."""
    deadline = time.monotonic() + SETTLED_S
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise ConfigError(f"{path}: {exc.strerror}", field="PREFECT_FT_RUNTIME_DIR") from exc
        try:
            if (answer := _try_lock(fd, service, takes=takes)) is True:
                return fd
            if answer is not None or time.monotonic() > deadline:
                raise _refusal(path.name, answer)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        time.sleep(_POLL_S)  # another process is taking or checking it


def _try_lock(fd: int, service: Service, *, takes: bool) -> Service | bool | None:
    """Return True if the run has the system, False if it is free, else its owner; None: not settled yet."""
    if _lock(fd, fcntl.LOCK_EX):
        if not takes:
            return True
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(asdict(service)).encode(), 0)
    if not _lock(fd, fcntl.LOCK_SH):  # fails between the owner's exclusive and its shared lock, too
        return None
    served = _read(fd)
    return True if served.run and served.run == service.run else served


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as exc:
        message = f"the file system of the run-time directory has no locks: {exc.strerror}"
        raise ConfigError(message, field="PREFECT_FT_RUNTIME_DIR") from exc
    return True


def _read(fd: int) -> Service:
    try:
        record = parse_json(os.pread(fd, 1 << 16, 0))
        return Service(**{name: record[name] for name in Service.__dataclass_fields__})
    except (ValueError, TypeError, LookupError):
        return Service("", "", "")


def _refusal(system: str, served: Service | bool | None) -> SystemHeldError:
    known = served if isinstance(served, Service) else Service("", "", "")
    return SystemHeldError(system, run_id=known.run, job=known.job, model_dir=known.model_dir)


def _locked_directory(directory: Path) -> int:
    """Hold a shared lock on the directory: cleaners of temporary files skip it."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return fd
