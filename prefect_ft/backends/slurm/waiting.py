"""Waits for a job whose nodes a run is to have, and finds out why one has not begun."""

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
"""How often it is looked whether an allocation has begun, at first and at last: at files, without asking Slurm."""

SPARES_S = 30.0
"""How long spares are waited for once there are nodes for all workers."""

ASK_S = (60.0, 300.0)
"""How old may be what Slurm says of a job that is waited for: at first, and at last."""

MOST_TRIES = 3
"""How often a job is submitted anew, in one life of an orchestrator, whose nodes have not begun."""

KILLED = frozenset(("COMPLETING", "FAILED", "RUNNING"))
"""States of a job whose batch step was killed, or lost with its node, and has not said why it ends."""

NOT_ITS_FAULT = ("BOOT_FAIL", "CANCELLED", "NODE_FAIL", "PREEMPTED")
"""States in which a job ends that others or its nodes have kept from beginning; root cancels one that cannot launch."""


class Waiting:
    """For the jobs of one run, in one life of its orchestrator."""

    def __init__(
        self, infrastructure: SlurmInfrastructure, allocations: Allocations, slurm: Slurm, queue: Queue
    ) -> None:
        self._infrastructure, self._allocations = infrastructure, allocations
        self._slurm, self._queue = slurm, queue
        self._tries = 0
        """How often a job has been had anew."""
        self._reasons: dict[str, str] = {}
        """Why jobs wait, as it was told last."""

    def until_it_begins(self, job: str, is_stopped: Callable[[], bool]) -> Allocation | None:
        """Wait until the nodes of a job answer; None: the job has ended, or nobody waits any more."""
        pause_s = ASK_S[0]
        ask_at = time.monotonic() + pause_s
        since: float | None = None
        look_s = LOOK_S[0]
        while not is_stopped():
            allocation = self._allocations.of_job(job)
            if allocation is not None and self._allocations.has_ended(allocation.name):
                self._not_begun(job, self._allocations.said_of(allocation.name))
                return None
            if allocation is not None:
                since = since or time.monotonic()
                waited_s, ready = time.monotonic() - since, len(self._allocations.ports(allocation))
                if may_begin(self._infrastructure, ready, len(allocation.nodes), waited_s):
                    return allocation
                if waited_s > self._infrastructure.start_timeout_s:
                    said = self._allocations.said_of(allocation.name)
                    self._allocations.release(allocation.name)
                    self._not_begun(job, f"no node answers: {said}", was_killed=True)
                    return None
            if time.monotonic() >= ask_at:
                if self.is_over(job, within_s=pause_s):
                    self._not_begun(job, "", was_killed=allocation is not None)
                    return None
                pause_s = min(1.5 * pause_s, ASK_S[1])
                ask_at = time.monotonic() + pause_s
            look_s = LOOK_S[0] if allocation is not None else min(1.05 * look_s, LOOK_S[1])
            time.sleep(look_s)
        return None

    def is_over(self, job: str, within_s: float = 1.0) -> bool:
        """Whether a job has ended, by what the queue told within that time; why one waits is told when it changes."""
        try:
            told = self._queue.state(job, within_s=within_s)
        except LookupError:
            return True
        if told is None:
            return False
        if told.is_pending and within_s >= ASK_S[0] and told.reason != self._reasons.get(job, ""):
            self._reasons[job] = told.reason
            tell(Notice(text=f"job {job} waits in the queue: {told.reason}"))
        return told.has_ended

    def _not_begun(self, job: str, why: str, *, was_killed: bool = False) -> None:
        """Say that a job has ended without use; raises BackendError unless another one can be had.

        `was_killed`: its batch step had begun, and has said nothing of its end.

        TenureCancelledError: a person has cancelled it.
        """
        told = self._slurm.last_known(job)
        state = f": {told.state} {told.reason}".rstrip() if told is not None else ""
        what = "never started" if told is not None and told.never_began else "ended before its nodes began"
        text = f"Slurm job {job} {what}{state}" + (f": {why}" if why else "")
        if job_here(os.environ) is not None:
            raise BackendError(text, on_any_system=True)
        if job == self._allocations.successive[-1] and not self._can_be_had_anew(told, was_killed):
            is_cancelled = told is not None and told.state == "CANCELLED"
            raise TenureCancelledError(text) if is_cancelled else BackendError(text, on_any_system=True)
        tell(Notice(text=text))

    def _can_be_had_anew(self, told: JobState | None, was_killed: bool) -> bool:
        """Whether another job may begin where this one has not: others took its nodes, or one of them failed."""
        if told is None or self._tries >= MOST_TRIES:
            return False
        if told.state not in NOT_ITS_FAULT and not (was_killed and told.state in KILLED):
            return False
        if told.state == "RUNNING":  # without its batch host, which Slurm misses later
            self._slurm.cancel([told.job])
        if told.state == "CANCELLED" and self._slurm.cancelled_by(told.job) in (None, os.getuid()):
            return False
        self._tries += 1
        return True

    def gives_back(self, job: str) -> bool:
        """Give back a job of which no node answers, once: it may have lost its batch host just as it began."""
        if job_here(os.environ) is not None or self._tries:
            return False
        self._tries += 1
        if (begun := self._allocations.of_job(job)) is not None:
            self._allocations.release(begun.name)
        self._slurm.cancel([job])
        tell(
            Notice(
                text=f"no node of job {job} can be reached from here: it is given back, and submitted anew"
            )
        )
        return True


def may_begin(given: SlurmInfrastructure, answering: int, nodes: int, waited_s: float) -> bool:
    """Whether a run may begin where so many of an allocation's nodes answer.

    With all of them at once, without some spares soon, with what there is after `start_timeout_s`.
    """
    workers = given.nodes or max(1, nodes - given.spares)
    has_workers = answering >= workers and waited_s > SPARES_S
    return answering == nodes or has_workers or (answering > 0 and waited_s > given.start_timeout_s)
