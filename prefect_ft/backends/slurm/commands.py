"""Slurm's commands, as this user: what could not be asked is unknown, and never gone.

A slurmctld that is busy or away makes commands wait; each has a time limit, and of its jobs nothing is known then.
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
"""How long a command that asks may take; Slurm's own MessageTimeout is 10 s."""

SUBMIT_TIMEOUT_S = 120.0
"""How long sbatch may take: site scripts look at a job first."""

NEEDED = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
GONE = ("Invalid job id", "invalid job id")
"""How scontrol says that it knows a job no more."""

ENV = {"SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"}


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, and whether it succeeded."""

    ok: bool
    out: str
    err: str


Run = Callable[[Sequence[str], float], Said]


def run(words: Sequence[str], timeout_s: float) -> Said:
    """Run one of Slurm's commands; a time-out and a missing command are failures with words of their own."""
    env = {**{name: value for name, value in os.environ.items() if not _rewrites(name)}, **ENV}
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
        return Said(False, "", f"no answer in {timeout_s:g} s")
    except OSError as exc:
        return Said(False, "", f"{words[0]}: {exc.strerror}")
    return Said(done.returncode == 0, done.stdout, done.stderr.strip())


def _rewrites(name: str) -> bool:
    """Whether a variable gives commands options that nobody wrote: formats of the user's, options of a batch job's."""
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
    """Asks about jobs, at most once in `every_s` for each unless it matters. Safe in threads."""

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
            told = self._asked(job)
            self._known[job] = self._now_s(), told
            return told

    def _asked(self, job: str) -> JobState | None:
        said = self._run(("scontrol", "show", "job", "-o", job), TIMEOUT_S)
        if said.ok:
            return read_scontrol(said.out)
        if any(word in said.err for word in GONE):
            raise LookupError(job)
        return None

    def last_known(self, job: str, life: int | None = None) -> JobState | None:
        """Return how a job, or a life of it, ended, from slurmctld or, where that knows no more, from the accounting.

        None: unknown. The accounting may be behind by some seconds.
        """
        try:
            told = self.state(job, within_s=1.0)
        except LookupError:
            told = None
        is_asked = told is not None and life in (None, told.restarts)
        if told is not None and is_asked and told.state != "COMPLETING":
            return told
        recorded = self._accounted(job, life)
        is_late = is_asked and recorded is not None and not recorded.has_ended
        return told if recorded is None or is_late else recorded

    def cancelled_by(self, job: str) -> int | None:
        """Return the user who has cancelled a job, as the accounting says; None: unknown. Root also ends what fails."""
        told = self._accounted(job)
        return None if told is None else canceller(told)

    def _accounted(self, job: str, life: int | None = None) -> JobState | None:
        words = ("sacct", "-n", "-P", "-X", "-D", "-j", job, "-o", "JobID,State,NodeList")
        said = self._run(words, TIMEOUT_S)
        return read_sacct(said.out, job, life) if said.ok else None

    def queue(self) -> str | None:
        """Return all jobs of this user that slurmctld knows, as `states.read_squeue` reads them; None: no answer."""
        said = self._run(("squeue", "-h", "-t", "all", "-u", str(os.getuid()), "-o", SQUEUE), TIMEOUT_S)
        return said.out if said.ok else None

    def named(self, name: str) -> list[str] | None:
        """Return this user's jobs of a name that have not ended, in their order; None: unknown."""
        words = ("squeue", "-h", "-u", str(os.getuid()), "-n", name, "-o", "%A")
        said = self._run(words, TIMEOUT_S)
        if not said.ok:
            return None
        return sorted({word for word in said.out.split() if word.isdigit()}, key=int)

    def time_limit(self, job: str) -> str | None:
        """Return the time limit of a job as sbatch takes it; None: it has none, or nobody says."""
        said = self._run(("squeue", "-h", "-j", job, "-o", "%l"), TIMEOUT_S)
        limit = said.out.strip()
        return limit if said.ok and limit[:1].isdigit() else None

    def partitions(self) -> set[str] | None:
        """Return the names of the partitions; None: unknown."""
        said = self._run(("sinfo", "-h", "-o", "%R"), TIMEOUT_S)
        return set(said.out.split()) if said.ok and said.out.strip() else None

    def submit(self, words: Sequence[str]) -> str:
        """Submit a job and return its id; raises BackendError with what sbatch says."""
        said = self._run(("sbatch", "--parsable", *words), SUBMIT_TIMEOUT_S)
        if not said.ok:
            raise BackendError(
                f"sbatch: {said.err or said.out or 'failed without a word'}", on_any_system=True
            )
        return said.out.strip().splitlines()[-1].split(";")[0]

    def cancel(self, jobs: Sequence[str], *options: str) -> str | None:
        """End jobs; return what went wrong, None: nothing. A job that has ended is none."""
        if not jobs:
            return None
        said = self._run(("scancel", *options, *jobs), TIMEOUT_S)
        return None if said.ok or any(word in said.err for word in GONE) else said.err

    def update(self, job: str, *, cwd: Path | None = None, **fields: str) -> str | None:
        """Change a job; return what went wrong. `cwd`: where scontrol leaves files, as it does where one shrinks."""
        words = [f"{name}={value}" for name, value in fields.items()]
        begun = () if cwd is None else ("env", f"--chdir={cwd}")
        said = self._run((*begun, "scontrol", "update", f"JobId={job}", *words), TIMEOUT_S)
        return None if said.ok else said.err or said.out

    def batch_script(self, job: str, path: str) -> None:
        """Write the script of a batch job to a file; raises BackendError."""
        said = self._run(("scontrol", "write", "batch_script", job, path), TIMEOUT_S)
        if not said.ok:
            raise BackendError(f"scontrol write batch_script: {said.err or said.out}", on_any_system=True)


def job_here(env: Mapping[str, str]) -> str | None:
    """Return the job whose batch script, or shell, this process runs in; None: it is in none."""
    return env.get("SLURM_JOB_ID") or None
