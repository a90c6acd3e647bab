"""What Slurm's commands print, and what it means. Pure.

Written for `scontrol show job -o` and `sacct -P` of 20.11 and later; tried on 22.05. Their JSON is not read: it changed
at 23.11 and 24.11.
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
"""What the end of an allocation in a state is to its run; in any other one its time was over, or nobody knows."""

_NOT_LAUNCHED = ("launchfailedrequeuedheld", "joblaunchfailure")
"""Reasons of a job that was held because a node could not begin it: as squeue prints them, and as scontrol does."""

_NO_NODES = "None assigned"
"""What sacct says of the nodes of a job that never had any."""

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
        """Whether it has ended without nodes, as one does that cannot be done by its deadline."""
        return self.has_ended and not self.nodes

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, or is being ended."""
        return self.state not in PENDING and self.state not in RUNNING


def read_scontrol(text: str) -> JobState | None:
    """Read the line of `scontrol show job -o`; None where it is none."""
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
    """Read a time of this machine's zone; Slurm says Unknown where there is none."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


SQUEUE = "%A|%T|%r|%N|%e|%l"
"""The format of squeue's lines that are read here."""


def read_squeue(text: str) -> dict[str, JobState]:
    """Read the lines of `squeue -h -o SQUEUE`, by job; what is no such line is left out."""
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
    """Read `sacct -n -P -X -D -o JobID,State,NodeList -j JOB`: a life of a job, its last one where none is named.

    None where it is not there. A job has a record for each life, and one for each time that it was resized.
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


def canceller(told: JobState) -> int | None:
    """Return the user id of who has cancelled a job, from a line of sacct; None: unknown."""
    found = _SACCT_CANCELLED.fullmatch(told.reason)
    return int(found[2]) if found is not None and (found[2] or "").isdecimal() else None


def end_of(told: JobState | None, name: str) -> TenureEnd:
    """Return what the end of an allocation is to its run; None: Slurm does not know it any more."""
    if told is None:
        return TenureEnd(kind="handed_over", reason=f"{name} has ended; Slurm does not say how")
    reason = f"{name} ended: {told.state}" + (f" ({told.reason})" if told.reason else "")
    if any(word in told.reason.lower().replace("_", "").replace(" ", "") for word in _NOT_LAUNCHED):
        return TenureEnd(kind="rebuild_failed", reason=reason)
    if not told.has_ended:  # asked of an earlier life of the job
        return TenureEnd(kind="handed_over", reason=f"{name} ended: it was requeued")
    kind, failure_class = _ENDS.get(told.state, ("handed_over", None))
    return TenureEnd(kind=kind, reason=reason, failure_class=failure_class)
