"""Runs Slurm's commands as this user. A command that fails leaves a job's state unknown, never "gone".

A slurmctld that is busy or down makes commands wait; each has a time limit, after which the state is unknown.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect_ft.backends.slurm.states import SQUEUE, JobState, canceller, read_sacct, read_scontrol
from prefect_ft.errors import BackendError, ConfigError

TIMEOUT_S = 20.0
"""How long a query may take; Slurm's own MessageTimeout is 10 s."""

SUBMIT_TIMEOUT_S = 120.0
"""How long sbatch may take: site scripts check a job first."""

NEEDED = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
GONE = ("Invalid job id", "invalid job id")
"""Messages of scontrol for a job that it has forgotten."""

ENV = {"SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"}


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command printed, and whether it succeeded."""

    ok: bool
    out: str
    err: str


Run = Callable[[Sequence[str], float], CommandResult]


def run(words: Sequence[str], timeout_s: float) -> CommandResult:
    """Run one of Slurm's commands; a time-out and a missing command are failures with a message of ours."""
    env = {**{name: value for name, value in os.environ.items() if not _changes_options(name)}, **ENV}
    try:
        done = subprocess.run(
            words,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=env,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return CommandResult(False, "", f"no answer in {timeout_s:g} s")
    except OSError as exc:
        return CommandResult(False, "", f"{words[0]}: {exc.strerror}")
    return CommandResult(done.returncode == 0, done.stdout, done.stderr.strip())


def _changes_options(name: str) -> bool:
    """Whether a variable changes commands' options: the user's formats, or options of a batch job."""
    return (
        name.startswith(("SQUEUE_", "SINFO_", "SACCT_", "SBATCH_", "SCANCEL_")) or name == "SLURM_TIME_FORMAT"
    )


def check_commands(field: str) -> None:
    """Raise ConfigError for the first command that is missing here."""
    for name in NEEDED:
        if shutil.which(name) is None:
            message = f"needs Slurm's {name}, which is not on PATH; containers often lack it: run this outside of them"
            raise ConfigError(message, field=field)


class Slurm:
    """Queries and changes jobs. A job's state is cached for `every_s` unless a caller wants it fresher. Thread-safe."""

    def __init__(
        self, *, run: Run = run, now_s: Callable[[], float] = time.monotonic, every_s: float = 60.0
    ) -> None:
        self._run, self._now_s, self._every_s = run, now_s, every_s
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, JobState | None]] = {}

    def state(self, job: str, *, within_s: float | None = None) -> JobState | None:
        """Return the state of a job, not older than `within_s`; None: unknown.

        Raises LookupError where Slurm has forgotten it.
        """
        with self._lock:
            known = self._known.get(job)
            limit_s = self._every_s if within_s is None else within_s
            if known is not None and self._now_s() - known[0] < limit_s:
                return known[1]
            job_state = self._query(job)
            self._known[job] = self._now_s(), job_state
            return job_state

    def _query(self, job: str) -> JobState | None:
        result = self._run(("scontrol", "show", "job", "-o", job), TIMEOUT_S)
        if result.ok:
            return read_scontrol(result.out)
        if any(word in result.err for word in GONE):
            raise LookupError(job)
        return None

    def last_known(self, job: str, life: int | None = None) -> JobState | None:
        """Return how a job, or one life of it, ended, from slurmctld or, once that has forgotten it, the accounting.

        None: unknown. The accounting may lag by some seconds.
        """
        try:
            current = self.state(job, within_s=1.0)
        except LookupError:
            current = None
        is_asked = current is not None and life in (None, current.restarts)
        if current is not None and is_asked and current.state != "COMPLETING":
            return current
        recorded = self._from_accounting(job, life)
        is_late = is_asked and recorded is not None and not recorded.has_ended
        return current if recorded is None or is_late else recorded

    def cancelled_by(self, job: str) -> int | None:
        """Return the user who cancelled a job, from the accounting; None: unknown. Root also cancels failed jobs."""
        recorded = self._from_accounting(job)
        return None if recorded is None else canceller(recorded)

    def _from_accounting(self, job: str, life: int | None = None) -> JobState | None:
        words = ("sacct", "-n", "-P", "-X", "-D", "-j", job, "-o", "JobID,State,NodeList")
        result = self._run(words, TIMEOUT_S)
        return read_sacct(result.out, job, life) if result.ok else None

    def queue(self) -> str | None:
        """Return all jobs of this user that slurmctld knows, in the format of `states.read_squeue`; None: no answer."""
        result = self._run(("squeue", "-h", "-t", "all", "-u", str(os.getuid()), "-o", SQUEUE), TIMEOUT_S)
        return result.out if result.ok else None

    def named(self, name: str) -> list[str] | None:
        """Return this user's jobs of a name that have not ended, in their order; None: unknown."""
        words = ("squeue", "-h", "-u", str(os.getuid()), "-n", name, "-o", "%A")
        result = self._run(words, TIMEOUT_S)
        if not result.ok:
            return None
        return sorted({word for word in result.out.split() if word.isdigit()}, key=int)

    def time_limit(self, job: str) -> str | None:
        """Return the time limit of a job as sbatch takes it; None: it has none, or it is unknown."""
        result = self._run(("squeue", "-h", "-j", job, "-o", "%l"), TIMEOUT_S)
        limit = result.out.strip()
        return limit if result.ok and limit[:1].isdigit() else None

    def partitions(self) -> set[str] | None:
        """Return the names of the partitions; None: unknown."""
        result = self._run(("sinfo", "-h", "-o", "%R"), TIMEOUT_S)
        return set(result.out.split()) if result.ok and result.out.strip() else None

    def submit(self, words: Sequence[str]) -> str:
        """Submit a job and return its id; raises BackendError with what sbatch says."""
        result = self._run(("sbatch", "--parsable", *words), SUBMIT_TIMEOUT_S)
        if not result.ok:
            raise BackendError(
                f"sbatch: {result.err or result.out or 'failed without a word'}", on_any_system=True
            )
        return result.out.strip().splitlines()[-1].split(";")[0]

    def cancel(self, jobs: Sequence[str], *options: str) -> str | None:
        """Cancel jobs; return what went wrong, None: nothing. Jobs that have ended are no error."""
        if not jobs:
            return None
        result = self._run(("scancel", *options, *jobs), TIMEOUT_S)
        return None if result.ok or any(word in result.err for word in GONE) else result.err

    def update(self, job: str, *, cwd: Path | None = None, **fields: str) -> str | None:
        """Change a job; return what went wrong. `cwd`: where scontrol leaves files when a job shrinks."""
        words = [f"{name}={value}" for name, value in fields.items()]
        begun = () if cwd is None else ("env", f"--chdir={cwd}")
        result = self._run((*begun, "scontrol", "update", f"JobId={job}", *words), TIMEOUT_S)
        return None if result.ok else result.err or result.out

    def batch_script(self, job: str, path: str) -> None:
        """Write the script of a batch job to a file; raises BackendError."""
        result = self._run(("scontrol", "write", "batch_script", job, path), TIMEOUT_S)
        if not result.ok:
            raise BackendError(f"scontrol write batch_script: {result.err or result.out}", on_any_system=True)


def job_here(env: Mapping[str, str]) -> str | None:
    """Return the job that this process runs in; None: it is in none."""
    return env.get("SLURM_JOB_ID") or None
