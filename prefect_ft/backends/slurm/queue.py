"""This user's jobs in Slurm's queue, queried once for all runs on a machine.

Waiting runs poll, and each query loads slurmctld: so the answer is cached in a file for the other runs. A run that
finds it too old queries again, while the others wait for the result; a failed query is cached as well.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from prefect_ft.backends.slurm.states import JobState, read_squeue
from prefect_ft.errors import ConfigError
from prefect_ft.files import read_json, write_json
from prefect_ft.run.runtime import made_runtime_directory, runtime_root

LOCK_S = 25.0
"""How long to wait for another run's query: somewhat longer than a command may take."""

Ask = Callable[[], str | None]
"""Returns the output of `squeue`; None: Slurm does not answer."""


class Queue:
    """The jobs of this user. `directory` holds the cache; None: nothing is shared."""

    def __init__(
        self, ask: Ask, directory: Path | None, now_s: Callable[[], float] = time.time, lock_s: float = LOCK_S
    ) -> None:
        self._ask, self._directory, self._now_s, self._lock_s = ask, directory, now_s, lock_s

    def state(self, job: str, *, within_s: float) -> JobState | None:
        """Return the state of a job, not older than `within_s`; None: unknown.

        Raises LookupError where the queue does not contain it, from a query made after the call.
        """
        called_s = self._now_s()
        with self._locked():
            for oldest_s in (called_s - within_s, called_s):
                text = self._queue_output(oldest_s)
                if text is None:
                    return None
                if (found := read_squeue(text).get(job)) is not None:
                    return found
        raise LookupError(job)

    def _queue_output(self, oldest_s: float) -> str | None:
        """Return the queue as printed since then, from the cache or a new query; None: Slurm did not answer."""
        path = self._directory / "told.json" if self._directory is not None else None
        kept: Mapping[str, object] = read_json(path) if path is not None else {}
        at_s, text = kept.get("at_s"), kept.get("text")
        if isinstance(at_s, (int, float)) and oldest_s <= at_s <= self._now_s():
            return text if isinstance(text, str) else None
        output = self._ask()
        if path is not None:
            write_json(path, {"at_s": self._now_s(), "text": output})
        return output

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other runs from querying meanwhile; without the lock in time, query all the same."""
        if self._directory is None:
            yield
            return
        fd = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline_s = time.monotonic() + self._lock_s
            while not _try_lock(fd) and time.monotonic() < deadline_s:
                time.sleep(0.05)
            yield
        finally:
            os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def shared_directory(env: Mapping[str, str]) -> Path | None:
    """Make and return the cache directory for a cluster, shared by this user's runs here; None: it cannot be made."""
    cluster = "\0".join(env.get(name, "") for name in ("SLURM_CONF", "SLURM_CLUSTERS"))
    name = f"slurm-{hashlib.sha256(os.fsencode(cluster)).hexdigest()[:16]}"
    try:
        return made_runtime_directory(runtime_root() / name)
    except ConfigError:
        return None
