"""Gets the nodes that a run lacks from a further job while it trains with fewer: the policy `grows`.

The further job has only the missing nodes. Once their node servers answer, ranks save, and the run continues in both
allocations together.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from prefect_ft.amounts import count
from prefect_ft.backends.kind import Tenure
from prefect_ft.backends.slurm.allocations import Allocation, Allocations, job_of, parts_of
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.clock import epoch_now
from prefect_ft.errors import BackendError
from prefect_ft.observe import Fact, Notice, observed_by, tell

LOOK_S = 5.0
"""How often to check how many nodes are missing, and whether a further job has begun."""

WORTH_S = 600.0
"""The least time left of an allocation for which more nodes are requested."""

MAX_FAILURES = 3
"""How many errors of Slurm or files end the requests for more nodes."""

ASK_S = 60.0
"""How old Slurm's state of a further job may be."""


class Growth:
    """Requests the nodes that one tenure lacks. After a further job without use, no other one is submitted."""

    def __init__(
        self,
        tenure: Tenure,
        target: int,
        *,
        allocations: Allocations,
        is_over: Callable[[str, float], bool],
        answering: Callable[[Allocation], Sequence[str]],
        submit: Callable[[int], str],
        cancel: Callable[[str], str | None],
        start_timeout_s: float,
        settle_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`target` is the configured number of workers; `is_over` returns whether a job has ended.

        `answering` returns which node servers of an allocation answer.
        `settle_s` is how long lost ranks may still run: until then no checkpoint counts and the run is left alone.
        """
        self._tenure, self._target, self._allocations = tenure, target, allocations
        self._is_over, self._answering = is_over, answering
        self._submit, self._cancel = submit, cancel
        self._start_timeout_s, self._settle_s, self._now_s = start_timeout_s, settle_s, now_s
        self._missing = 0
        self._missing_since_s = 0.0
        self._begun: tuple[str, float] | None = None
        """The further job that has begun, and when that was seen."""
        self.is_given_up = False
        self.notices: deque[str] = deque()
        """Notices to be published."""

    def look(self, workers: int) -> str | None:
        """Describe the new nodes for a run that has so many workers; None: there are none yet.

        Raises BackendError where Slurm refuses a further job.
        """
        missing, job = self._target - workers, self._pending_job()
        if missing > self._missing:
            self._missing_since_s = self._now_s()
        self._missing = missing
        if job is None:
            if self._added_nothing():
                self._give_up("the nodes of the last further job cannot be used")
            elif missing > 0 and self._is_worth_it():
                nodes = count(missing, "more node")
                self.notices.append(f"job {self._submit(missing)} asks for {nodes}")
            return None
        allocation = self._allocations.of_job(job)
        if allocation is not None and self._allocations.has_ended(allocation.name):
            self._give_up(f"job {job}, which was to add nodes, has ended before it was used")
        elif missing <= 0 or not self._is_worth_it():
            self._forget(job, allocation)
        elif allocation is not None:
            return self._joinable(job, allocation)
        elif self._is_over(job, ASK_S):
            self._give_up(f"job {job}, which was to add nodes, has ended before it began")
        return None

    def abandon(self, why: str) -> None:
        """Request no more nodes, and cancel the pending further job, as far as Slurm and the files allow it."""
        self.is_given_up = True
        self.notices.append(f"no more nodes are asked for: {why}")
        with suppress(BackendError, OSError):
            if (job := self._pending_job()) is not None:
                self._forget(job, self._allocations.of_job(job))

    def _pending_job(self) -> str | None:
        """Return the last further job, unless the tenure includes it already."""
        has = {job_of(part) for part in parts_of(self._tenure.name)[1:]}
        last = self._allocations.further_for(job_of(self._tenure.name))[-1:]
        return next((job for job in last if job not in has), None)

    def _is_worth_it(self) -> bool:
        ends_s = self._tenure.ends_s
        return ends_s is None or ends_s - epoch_now() > WORTH_S

    def _added_nothing(self) -> bool:
        """Whether the tenure began without any node of its last further job."""
        last = self._allocations.named(parts_of(self._tenure.name)[-1])
        return last is not None and not {*last.nodes} & {*self._tenure.systems}

    def _joinable(self, job: str, allocation: Allocation) -> str | None:
        now_s = self._now_s()
        if self._begun is None or self._begun[0] != job:
            self._begun = job, now_s
        is_late = now_s > self._begun[1] + self._start_timeout_s
        has_all = len(self._allocations.ports(allocation)) == len(allocation.nodes)
        if now_s < self._missing_since_s + self._settle_s or not (has_all or is_late):
            return None
        if nodes := self._answering(allocation):
            return f"job {job} adds {', '.join(nodes)}"
        if is_late:
            self._allocations.release(allocation.name)
            self._give_up(f"no node of job {job}, which was to add nodes, answers")
        return None

    def _forget(self, job: str, allocation: Allocation | None) -> None:
        """Drop a further job: isolated nodes can be used again, or the allocation ends soon."""
        self._allocations.forget(job)
        if allocation is not None:
            self._allocations.release(allocation.name)
        elif (wrong := self._cancel(job)) is not None:
            self.notices.append(f"job {job}, which is not needed any more, may be left in the queue: {wrong}")

    def _give_up(self, why: str) -> None:
        self.is_given_up = True
        self.notices.append(f"{why}; no more are asked for")


@contextmanager
def growing(
    growth: Growth, workers: Callable[[], int | None], grown: Callable[[str], None]
) -> Iterator[None]:
    """Poll while entered; `workers` returns those of the last attempt, None: there was none yet.

    Calls `grown` once, with a description of the new nodes. Notices are published with the next fact observed.
    """
    left, failed = threading.Event(), 0

    def heard(_: Fact | None) -> None:
        while growth.notices:
            tell(Notice(text=growth.notices.popleft()))

    def look() -> None:
        nonlocal failed
        while not left.wait(LOOK_S) and not growth.is_given_up:
            if (running := workers()) is None:
                continue
            try:
                arrived = growth.look(running)
            except (BackendError, OSError) as exc:
                failed += 1
                if failed == MAX_FAILURES:
                    growth.abandon(str(exc))
                    return
                continue
            if arrived is not None:
                grown(arrived)
                return

    looker = threading.Thread(target=look, name="prefect-ft-growth", daemon=True)
    looker.start()
    with observed_by(heard):
        try:
            yield
        finally:
            left.set()
            looker.join()
            heard(None)


def further(
    given: SlurmInfrastructure, nodes: int, ends_s: float | None, *, env: Mapping[str, str]
) -> SlurmInfrastructure:
    """Return the request for a job of so many further nodes, which ends with the allocation that ends at `ends_s`.

    Fields that are not set are taken from the allocation of the environment `env`.
    """
    names = {"partition": "SLURM_JOB_PARTITION", "account": "SLURM_JOB_ACCOUNT", "qos": "SLURM_JOB_QOS"}
    around = {
        field: env[name] for field, name in names.items() if getattr(given, field) is None and env.get(name)
    }
    time_limit = given.time if ends_s is None else str(max(1, math.ceil((ends_s - epoch_now()) / 60.0)))
    options = {name: value for name, value in given.sbatch.items() if name not in ("nodelist", "nodefile")}
    changed = {"nodes": nodes, "spares": 0, "time": time_limit, "sbatch": options}
    return given.model_copy(update={**changed, **around})
