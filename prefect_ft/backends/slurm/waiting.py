"""Waits for a job whose nodes a run will use, and finds out why one did not begin."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from prefect_ft.backends.slurm.allocations import Allocation, Allocations
from prefect_ft.backends.slurm.commands import Slurm, job_here
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.backends.slurm.queue import Queue
from prefect_ft.backends.slurm.states import JobState
from prefect_ft.errors import BackendError, TenureCancelledError
from prefect_ft.observe import Notice, tell

LOOK_S = (0.2, 2.0)
"""How often to check whether an allocation has begun, at first and at last: by files, without asking Slurm."""

SPARES_S = 30.0
"""How long to wait for spares once there are nodes for all workers."""

ASK_S = (60.0, 300.0)
"""How old Slurm's state of the awaited job may be, at first and at last."""

MAX_RESUBMISSIONS = 3
"""How often one orchestrator resubmits a job whose nodes did not begin."""

KILLED = frozenset(("COMPLETING", "FAILED", "RUNNING"))
"""States of a job whose batch step was killed, or lost with its node, before it could record why."""

NOT_ITS_FAULT = ("BOOT_FAIL", "CANCELLED", "NODE_FAIL", "PREEMPTED")
"""End states of a job kept from beginning by other jobs or its nodes; root cancels one that cannot launch."""


class Waiting:
    """Waits for the jobs of one run, on behalf of one orchestrator."""

    def __init__(
        self, infrastructure: SlurmInfrastructure, allocations: Allocations, slurm: Slurm, queue: Queue
    ) -> None:
        self._infrastructure, self._allocations = infrastructure, allocations
        self._slurm, self._queue = slurm, queue
        self._tries = 0
        """How often a job has been resubmitted."""
        self._reasons: dict[str, str] = {}
        """Why jobs wait, as last reported."""

    def until_it_begins(self, job: str, is_stopped: Callable[[], bool]) -> Allocation | None:
        """Wait until the nodes of a job answer; None: the job has ended, or `is_stopped` returned True."""
        pause_s = ASK_S[0]
        ask_at = time.monotonic() + pause_s
        since: float | None = None
        look_s = LOOK_S[0]
        while not is_stopped():
            allocation = self._allocations.of_job(job)
            if allocation is not None and self._allocations.has_ended(allocation.name):
                self._report_not_begun(job, self._allocations.last_log_lines(allocation.name))
                return None
            if allocation is not None:
                since = since or time.monotonic()
                waited_s, ready = time.monotonic() - since, len(self._allocations.ports(allocation))
                if may_begin(self._infrastructure, ready, len(allocation.nodes), waited_s):
                    return allocation
                if waited_s > self._infrastructure.start_timeout_s:
                    log_lines = self._allocations.last_log_lines(allocation.name)
                    self._allocations.release(allocation.name)
                    self._report_not_begun(job, f"no node answers: {log_lines}", was_killed=True)
                    return None
            if time.monotonic() >= ask_at:
                if self.is_over(job, within_s=pause_s):
                    self._report_not_begun(job, "", was_killed=allocation is not None)
                    return None
                pause_s = min(1.5 * pause_s, ASK_S[1])
                ask_at = time.monotonic() + pause_s
            look_s = LOOK_S[0] if allocation is not None else min(1.05 * look_s, LOOK_S[1])
            time.sleep(look_s)
        return None

    def is_over(self, job: str, within_s: float = 1.0) -> bool:
        """Whether a job has ended, by a queue state not older than `within_s`; reports when a wait's reason changes."""
        try:
            job_state = self._queue.state(job, within_s=within_s)
        except LookupError:
            return True
        if job_state is None:
            return False
        if job_state.is_pending and within_s >= ASK_S[0] and job_state.reason != self._reasons.get(job, ""):
            self._reasons[job] = job_state.reason
            tell(Notice(text=f"job {job} waits in the queue: {job_state.reason}"))
        return job_state.has_ended

    def _report_not_begun(self, job: str, why: str, *, was_killed: bool = False) -> None:
        """Report that a job ended before its nodes could be used; raises BackendError unless another may be submitted.

        `was_killed`: its batch step had begun, and has not recorded its end.

        Raises TenureCancelledError where a person cancelled it.
        """
        job_state = self._slurm.last_known(job)
        state = f": {job_state.state} {job_state.reason}".rstrip() if job_state is not None else ""
        what = (
            "never started"
            if job_state is not None and job_state.never_began
            else "ended before its nodes began"
        )
        text = f"Slurm job {job} {what}{state}" + (f": {why}" if why else "")
        if job_here(os.environ) is not None:
            raise BackendError(text, on_any_system=True)
        if job == self._allocations.successive[-1] and not self._may_submit_again(job_state, was_killed):
            is_cancelled = job_state is not None and job_state.state == "CANCELLED"
            raise TenureCancelledError(text) if is_cancelled else BackendError(text, on_any_system=True)
        tell(Notice(text=text))

    def _may_submit_again(self, job_state: JobState | None, was_killed: bool) -> bool:
        """Whether another job may succeed where this one did not: others took its nodes, or one of them failed."""
        if job_state is None or self._tries >= MAX_RESUBMISSIONS:
            return False
        if job_state.state not in NOT_ITS_FAULT and not (was_killed and job_state.state in KILLED):
            return False
        if job_state.state == "RUNNING":  # without its batch host, which Slurm notices later
            self._slurm.cancel([job_state.job])
        if job_state.state == "CANCELLED" and self._slurm.cancelled_by(job_state.job) in (None, os.getuid()):
            return False
        self._tries += 1
        return True

    def release_once(self, job: str) -> bool:
        """Release a job of which no node answers, once; return whether it did.

        It may have lost its batch host just as it began.
        """
        if job_here(os.environ) is not None or self._tries:
            return False
        self._tries += 1
        if (begun := self._allocations.of_job(job)) is not None:
            self._allocations.release(begun.name)
        self._slurm.cancel([job])
        tell(
            Notice(text=f"no node of job {job} can be reached from here: it is released, and submitted anew")
        )
        return True


def may_begin(given: SlurmInfrastructure, answering: int, nodes: int, waited_s: float) -> bool:
    """Whether a run may begin with this many answering nodes of an allocation.

    With all of them at once, without spares after SPARES_S, with any number after `start_timeout_s`.
    """
    workers = given.nodes or max(1, nodes - given.spares)
    has_workers = answering >= workers and waited_s > SPARES_S
    return answering == nodes or has_workers or (answering > 0 and waited_s > given.start_timeout_s)
