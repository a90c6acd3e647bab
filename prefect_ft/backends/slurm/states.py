"""Parses the output of Slurm's commands. Pure.

Written for `scontrol show job -o` and `sacct -P` of 20.11 and later; tested on 22.05. Their JSON is not used: it
changed in 23.11 and 24.11.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from prefect_ft.backends.kind import TenureEnd
from prefect_ft.model import FailureClass, Kind
from prefect_ft.worker.holder import UNLIMITED

PENDING = frozenset(
    ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
)
RUNNING = frozenset(("RUNNING", "RESIZING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "STOPPED"))
_ENDS: Mapping[str, tuple[Kind, FailureClass | None]] = {
    "PREEMPTED": ("preempted", None),
    "CANCELLED": ("cancelled", None),
    "NODE_FAIL": ("system_lost", None),
    "OUT_OF_MEMORY": ("exit", "oom_host"),
    "BOOT_FAIL": ("rebuild_failed", None),
}
"""What the end of an allocation in a state means for its run; in other states its time was over, or it is unknown."""

_NOT_LAUNCHED = ("launchfailedrequeuedheld", "joblaunchfailure")
"""Reasons of a job held because a node could not launch it: as printed by squeue, and by scontrol."""

_NO_NODES = "None assigned"
"""The node list that sacct prints for a job that never had nodes."""

_SACCT_CANCELLED = re.compile(r"CANCELLED( by (\S+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """One job. `nodes` is Slurm's own list, as in `n[0-3]`; `ends_s` are seconds since the epoch."""

    job: str
    state: str
    reason: str = ""
    nodes: str = ""
    ends_s: float | None = None
    restarts: int = 0

    @property
    def is_pending(self) -> bool:
        """Whether it waits for nodes."""
        return self.state in PENDING

    @property
    def never_began(self) -> bool:
        """Whether it has ended without nodes, as a job does that cannot meet its deadline."""
        return self.has_ended and not self.nodes

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, or is being ended."""
        return self.state not in PENDING and self.state not in RUNNING


def read_scontrol(text: str) -> JobState | None:
    """Read the line of `scontrol show job -o`; None where it is not one."""
    job, state = _field(text, "JobId"), _field(text, "JobState")
    if job is None or state is None:
        return None
    return JobState(
        job=job,
        state=state,
        reason=_field(text, "Reason") or "",
        nodes=_field(text, "NodeList") or "",
        ends_s=None if _field(text, "TimeLimit") in UNLIMITED else _time(_field(text, "EndTime")),
        restarts=int(_field(text, "Restarts") or 0),
    )


def _field(text: str, name: str) -> str | None:
    found = re.search(rf"(?:^|\s){name}=(\S+)", text)
    return None if found is None or found[1] in ("(null)", "None") else found[1]


def _time(text: str | None) -> float | None:
    """Read a local time; Slurm prints Unknown where there is none."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


SQUEUE = "%A|%T|%r|%N|%e|%l"
"""The format of squeue's lines that are read here."""


def read_squeue(text: str) -> dict[str, JobState]:
    """Read the lines of `squeue -h -o SQUEUE`, by job; other lines are skipped."""
    rows = [line.strip().split("|") for line in text.splitlines() if line.count("|") == SQUEUE.count("|")]
    return {
        job: JobState(
            job=job,
            state=state,
            reason="" if reason == "None" else reason,
            nodes=nodes,
            ends_s=None if limit in UNLIMITED else _time(ends),
        )
        for job, state, reason, nodes, ends, limit in rows
    }


def read_sacct(text: str, job: str, life: int | None = None) -> JobState | None:
    """Read `sacct -n -P -X -D -o JobID,State,NodeList -j JOB`: a life of a job, by default its last one.

    None where it is missing. A job has a record for each life, and one for each resize.
    """
    rows = [line.split("|") for line in text.splitlines() if line.count("|") >= 2]
    lives = [row for row in rows if row[0] == job and not row[1].startswith("RESIZING")]
    if not lives or (life is not None and life >= len(lives)):
        return None
    _, state, nodes, *_rest = lives[-1 if life is None else life]
    cancelled = _SACCT_CANCELLED.fullmatch(state)
    reason = state if cancelled else ""
    return JobState(
        job=job,
        state="CANCELLED" if cancelled else state,
        reason=reason,
        nodes="" if nodes == _NO_NODES else nodes,
    )


def canceller(job_state: JobState) -> int | None:
    """Return the id of the user who cancelled a job, from a record of sacct; None: unknown."""
    found = _SACCT_CANCELLED.fullmatch(job_state.reason)
    return int(found[2]) if found is not None and (found[2] or "").isdecimal() else None


def end_of(job_state: JobState | None, name: str) -> TenureEnd:
    """Return what the end of an allocation means for its run; `job_state` None: Slurm has forgotten it."""
    if job_state is None:
        return TenureEnd(kind="handed_over", reason=f"{name} has ended; Slurm does not say how")
    reason = f"{name} ended: {job_state.state}" + (f" ({job_state.reason})" if job_state.reason else "")
    if any(word in job_state.reason.lower().replace("_", "").replace(" ", "") for word in _NOT_LAUNCHED):
        return TenureEnd(kind="rebuild_failed", reason=reason)
    if not job_state.has_ended:  # asked of an earlier life of the job
        return TenureEnd(kind="handed_over", reason=f"{name} ended: it was requeued")
    kind, failure_class = _ENDS.get(job_state.state, ("handed_over", None))
    return TenureEnd(kind=kind, reason=reason, failure_class=failure_class)
