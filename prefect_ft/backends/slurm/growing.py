"""Nodes that a run lacks, asked for by a further job while it trains with fewer: the policy `grows`.

The further job is small: it has the missing nodes alone. Once their node servers are there, ranks save, and the run
continues in both allocations together.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from prefect_ft.backends.kind import Tenure
from prefect_ft.backends.slurm.allocations import Allocation, Allocations, job_of, parts_of
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.clock import epoch_now
from prefect_ft.errors import BackendError
from prefect_ft.observe import Fact, Notice, observed_by, tell

LOOK_S = 5.0
"""How often it is looked how many nodes are missing, and whether a further job has begun."""

WORTH_S = 600.0
"""How much has to be left of an allocation for more nodes to be asked for."""

MOST_FAILURES = 3
"""How often Slurm or a file may refuse something before no more nodes are asked for."""

ASK_S = 60.0
"""How old may be what Slurm says of a further job."""


class Growth:
    """Asks for the nodes that one tenure lacks. Once a further job came to nothing, no other one is asked for."""

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
        """`target` is how many workers the run is to have; `is_over` says of a job whether it has ended.

        `answering` asks the node servers of an allocation, and says which answer.
        `settle_s` is how long a loss may still be felt: until then no checkpoint counts, and the run is left alone.
        """
        self._tenure, self._target, self._allocations = tenure, target, allocations
        self._is_over, self._answering = is_over, answering
        self._submit, self._cancel = submit, cancel
        self._start_timeout_s, self._settle_s, self._now_s = start_timeout_s, settle_s, now_s
        self._missing = 0
        self._missing_since_s = 0.0
        self._begun: tuple[str, float] | None = None
        """The further job that was seen to have begun, and since when."""
        self.is_given_up = False
        self.said: deque[str] = deque()
        """What is to be told of it."""

    def look(self, workers: int) -> str | None:
        """Return what has come, in words, for a run that has so many workers; None: nothing yet.

        Raises BackendError where Slurm takes no further job.
        """
        missing, job = self._target - workers, self._asked_for()
        if missing > self._missing:
            self._missing_since_s = self._now_s()
        self._missing = missing
        if job is None:
            if self._came_to_nothing():
                self._give_up("the nodes of the last further job cannot be used")
            elif missing > 0 and self._is_worth_it():
                nodes = f"{missing} more node{'' if missing == 1 else 's'}"
                self.said.append(f"job {self._submit(missing)} asks for {nodes}")
            return None
        allocation = self._allocations.of_job(job)
        if allocation is not None and self._allocations.has_ended(allocation.name):
            self._give_up(f"job {job}, which was to add nodes, has ended before it was used")
        elif missing <= 0 or not self._is_worth_it():
            self._forget(job, allocation)
        elif allocation is not None:
            return self._come(job, allocation)
        elif self._is_over(job, ASK_S):
            self._give_up(f"job {job}, which was to add nodes, has ended before it began")
        return None

    def abandon(self, why: str) -> None:
        """Ask for no more, and cancel the further job that still waits, as far as Slurm and the files allow it."""
        self.is_given_up = True
        self.said.append(f"no more nodes are asked for: {why}")
        with suppress(BackendError, OSError):
            if (job := self._asked_for()) is not None:
                self._forget(job, self._allocations.of_job(job))

    def _asked_for(self) -> str | None:
        """Return the last further job, unless the tenure has it already."""
        has = {job_of(part) for part in parts_of(self._tenure.name)[1:]}
        last = self._allocations.further_for(job_of(self._tenure.name))[-1:]
        return next((job for job in last if job not in has), None)

    def _is_worth_it(self) -> bool:
        ends_s = self._tenure.ends_s
        return ends_s is None or ends_s - epoch_now() > WORTH_S

    def _came_to_nothing(self) -> bool:
        """Whether the tenure began without any node of its last further job."""
        last = self._allocations.named(parts_of(self._tenure.name)[-1])
        return last is not None and not {*last.nodes} & {*self._tenure.systems}

    def _come(self, job: str, allocation: Allocation) -> str | None:
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
        """Do without a further job: isolated nodes can be used again, or the allocation ends soon."""
        self._allocations.forget(job)
        if allocation is not None:
            self._allocations.release(allocation.name)
        elif (wrong := self._cancel(job)) is not None:
            self.said.append(f"job {job}, which is not needed any more, may be left in the queue: {wrong}")

    def _give_up(self, why: str) -> None:
        self.is_given_up = True
        self.said.append(f"{why}; no more are asked for")


@contextmanager
def growing(
    growth: Growth, workers: Callable[[], int | None], grown: Callable[[str], None]
) -> Iterator[None]:
    """Look again and again while entered; `workers` are those of the last attempt, None: there was none yet.

    Calls `grown` once, with what has come. What is said meanwhile is told with whatever else happens.
    """
    left, failed = threading.Event(), 0

    def heard(_: Fact | None) -> None:
        while growth.said:
            tell(Notice(text=growth.said.popleft()))

    def look() -> None:
        nonlocal failed
        while not left.wait(LOOK_S) and not growth.is_given_up:
            if (count := workers()) is None:
                continue
            try:
                come = growth.look(count)
            except (BackendError, OSError) as exc:
                failed += 1
                if failed == MOST_FAILURES:
                    growth.abandon(str(exc))
                    return
                continue
            if come is not None:
                grown(come)
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
    given: SlurmInfrastructure, count: int, ends_s: float | None, *, env: Mapping[str, str]
) -> SlurmInfrastructure:
    """Return what a job of so many further nodes is asked for by; it ends with the one whose end is `ends_s`.

    Fields that are not set are taken from the allocation of the environment `env`.
    """
    names = {"partition": "SLURM_JOB_PARTITION", "account": "SLURM_JOB_ACCOUNT", "qos": "SLURM_JOB_QOS"}
    around = {
        field: env[name] for field, name in names.items() if getattr(given, field) is None and env.get(name)
    }
    time_limit = given.time if ends_s is None else str(max(1, math.ceil((ends_s - epoch_now()) / 60.0)))
    options = {name: value for name, value in given.sbatch.items() if name not in ("nodelist", "nodefile")}
    changed = {"nodes": count, "spares": 0, "time": time_limit, "sbatch": options}
    return given.model_copy(update={**changed, **around})
