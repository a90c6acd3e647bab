"""Gets and returns the allocations of one run: submits or finds them, waits, queues successors, releases them.

An allocation that contains this process belongs to the user: it is used, and never ended.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from prefect_ft.backends.direct import DirectWay
from prefect_ft.backends.kind import Place, Tenure, TenureEnd
from prefect_ft.backends.slurm.allocations import (
    Allocation,
    Allocations,
    job_of,
    life_of,
    parts_of,
)
from prefect_ft.backends.slurm.commands import Slurm, job_here
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.backends.slurm.growing import Growth, further
from prefect_ft.backends.slurm.links import answering, is_any_going, links_to
from prefect_ft.backends.slurm.nodes import NodeLink
from prefect_ft.backends.slurm.queue import Queue, shared_directory
from prefect_ft.backends.slurm.states import end_of
from prefect_ft.backends.slurm.submission import Submission
from prefect_ft.backends.slurm.waiting import Waiting
from prefect_ft.errors import BackendError
from prefect_ft.observe import Notice, tell
from prefect_ft.run import certificates_of

FRESH_S = 20.0
"""How old Slurm's answer about the end of the present allocation may be."""

BEING_ENDED_S = 45.0
"""How long to wait for the final state of an allocation that is completing: more than Slurm's KillWait."""

_log = logging.getLogger(__name__)


class Lending:
    """Gets and releases the nodes of one run."""

    def __init__(
        self,
        infrastructure: SlurmInfrastructure,
        place: Place,
        slurm: Slurm | None = None,
        queue: Queue | None = None,
    ) -> None:
        self._infrastructure, self._place = infrastructure, place
        self._allocations = Allocations(place.run_root)
        self._slurm = slurm or Slurm()
        self._queue = queue or Queue(self._slurm.queue, shared_directory(os.environ))
        self._submission = Submission(infrastructure, place, self._allocations, self._slurm)
        self._waits = Waiting(infrastructure, self._allocations, self._slurm, self._queue)

    # -- the present one ----------------------------------------------------------------------------

    def tenure(self, is_stopped: Callable[[], bool]) -> Tenure | None:
        """Return the run's tenure, or wait for the next one; None: `is_stopped` returned True. Raises BackendError."""
        payload = self._submission.prepare()
        here = job_here(os.environ)
        while True:
            job = here or self._waiting() or self._submission.submit(payload)
            if here is not None and self._allocations.of_job(here) is None:
                self._submission.start_holder(payload)
            self._drop_further_jobs(
                *{base for base in self._allocations.further.values() if base not in (None, job)}
            )
            allocation = self._joined(self._waits.until_it_begins(job, is_stopped))
            if allocation is not None and (
                (nodes := self._answering(allocation)) or not self._waits.release_once(job)
            ):
                break
            if is_stopped():
                return None
            if here is not None:
                raise BackendError("the allocation ends before its nodes have begun", on_any_system=True)
        if not nodes:
            raise BackendError(f"no node of {allocation.name} can be reached from here", on_any_system=True)
        self._allocations.choose(allocation.name)
        return Tenure(
            name=allocation.name,
            systems=nodes,
            ends_s=allocation.ends_s,
            contains_us=here is not None,
            reserve_s=self._infrastructure.reserve_s,
        )

    def _waiting(self) -> str | None:
        """Return the first job of the run that is not known to have ended; None: there is none.

        Raises BackendError where an orchestrator died while submitting one, and Slurm does not answer whether it did.
        """
        if self._allocations.is_submitting:
            found = self._slurm.named(self._submission.name)
            if found is None:
                raise BackendError(
                    "Slurm does not answer, and a job of this run may have been submitted: try again",
                    on_any_system=True,
                )
            self._allocations.note(*found)
        for job in self._allocations.successive:
            allocation = self._allocations.of_job(job)
            if allocation is not None and self._allocations.has_ended(allocation.name):
                continue
            if not self._waits.is_over(job):
                return job
        return None

    def _joined(self, allocation: Allocation | None) -> Allocation | None:
        """Return an allocation together with those joined to it."""
        now = self._allocations.current
        if allocation is None or now is None or parts_of(now)[0] != allocation.name:
            return allocation
        return self._allocations.named(now)

    def _answering(self, allocation: Allocation) -> tuple[str, ...]:
        """Return the nodes whose servers answer, in Slurm's order."""
        nodes = self._answers(allocation)
        for node in allocation.nodes if nodes else ():
            if node not in nodes:
                tell(Notice(text=f"node {node} of {allocation.name} does not answer; it is left out"))
        return nodes

    def _answers(self, allocation: Allocation) -> tuple[str, ...]:
        with self._linked(allocation) as links:
            found = answering(links)
        return tuple(node for node in allocation.nodes if node in found)

    @contextmanager
    def _linked(self, allocation: Allocation) -> Iterator[Mapping[str, NodeLink]]:
        """Open links to the node servers of an allocation; close them at exit."""
        place = self._place
        certificates = certificates_of(place.run_root)
        way = DirectWay(certificates.orchestrator(), 0, self._infrastructure.silence_timeout_s)
        links = links_to(allocation, self._allocations, way, run_id=place.run_id, key=place.key)
        try:
            yield links
        finally:
            for link in links.values():
                link.close()

    def renewed(self, tenure: Tenure) -> Tenure:
        """Return a tenure with its present end; unchanged where Slurm does not answer."""
        try:
            job_state = self._queue.state(job_of(tenure.name), within_s=FRESH_S)
        except LookupError:
            return tenure
        return (
            tenure
            if job_state is None or job_state.ends_s is None
            else replace(tenure, ends_s=job_state.ends_s)
        )

    # -- what comes after ---------------------------------------------------------------------------

    def end_of(self, name: str) -> TenureEnd:
        """Return how an earlier tenure ended; waits BEING_ENDED_S while it completes, so not for a lost node."""
        deadline, pause_s, job = time.monotonic() + BEING_ENDED_S, 1.0, job_of(name)
        life = life_of(name)
        while (
            job_state := self._slurm.last_known(job, life)
        ) is not None and job_state.state == "COMPLETING":
            if time.monotonic() > deadline:
                break
            time.sleep(pause_s)
            pause_s *= 1.5
        return end_of(job_state, name)

    def growth(self, tenure: Tenure) -> Growth:
        """Return the growth of a tenure to its configured size."""
        return Growth(
            tenure,
            self._infrastructure.workers,
            allocations=self._allocations,
            is_over=self._waits.is_over,
            submit=lambda count: self._submit_more(tenure, count),
            answering=self._answers,
            cancel=lambda job: self._slurm.cancel([job]),
            start_timeout_s=self._infrastructure.start_timeout_s,
            settle_s=self._infrastructure.lost_ranks_last_s() or 0.0,
        )

    def _submit_more(self, tenure: Tenure, count: int) -> str:
        given = further(self._infrastructure, count, tenure.ends_s, env=os.environ)
        return self._submission.submit(self._submission.prepare(), given=given, more_for=job_of(tenure.name))

    def join(self, tenure: Tenure) -> bool:
        """Join the further jobs that have begun to this tenure for the next one; False: this one itself is ending."""
        first = self._allocations.named(parts_of(tenure.name)[0])
        if first is None or self._allocations.has_ended(first.name):
            return False
        with self._linked(first) as links:
            if is_any_going(links.values()):
                return False
        self._allocations.join(tenure.name)
        return True

    def release(self, tenure: Tenure) -> None:
        """Release the nodes of a tenure, and its further jobs."""
        self._drop_further_jobs(job_of(tenure.name))
        if not tenure.contains_us:
            self._allocations.release(tenure.name)

    def _drop_further_jobs(self, *bases: str | None) -> None:
        """Release, or cancel, the further jobs for these jobs."""
        for job in [each for base in bases if base for each in self._allocations.further_for(base)]:
            if (begun := self._allocations.of_job(job)) is not None:
                self._allocations.release(begun.name)
            elif (wrong := self._slurm.cancel([job])) is not None:
                _log.warning("job %s may be left in the queue: %s", job, wrong)
                continue
            self._allocations.forget(job)

    def succeed(self, tenure: Tenure) -> str | None:
        """Queue the successor of a tenure and return its name; None: there is none. Raises BackendError."""
        if not self._infrastructure.hand_over or tenure.ends_s is None:
            return None
        job = job_of(tenure.name)
        later = self._queued_after(job)
        if later is not None:
            return f"job {later}"
        more = (
            []
            if self._infrastructure.queue_deadline is None
            else [f"--deadline={self._infrastructure.queue_deadline}"]
        )
        if tenure.contains_us:
            return f"job {self._submission.submit_again(job, more)}"
        return f"job {self._submission.submit(self._submission.prepare(), '--dependency=singleton', *more)}"

    def _queued_after(self, job: str) -> str | None:
        """Return the job queued after another one, if it has not ended."""
        known = self._allocations.successive
        behind = known[known.index(job) + 1 :] if job in known else known
        return next((each for each in behind if not self._waits.is_over(each)), None)
