"""The allocations of one run: submitted or found, waited for, followed by others, given back.

The allocation that this process is in is somebody's own: it is used, and never ended.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from prefect_ft.backends.direct import DirectWay
from prefect_ft.backends.kind import SUCCESSOR_OF, Place, Tenure, TenureEnd
from prefect_ft.backends.slurm.allocations import (
    Allocation,
    Allocations,
    job_of,
    life_of,
    parts_of,
)
from prefect_ft.backends.slurm.backend import answering, is_going, links_to
from prefect_ft.backends.slurm.commands import Slurm, job_here
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.backends.slurm.growing import Growth, further
from prefect_ft.backends.slurm.nodes import NodeLink
from prefect_ft.backends.slurm.queue import Queue, shared_directory
from prefect_ft.backends.slurm.script import job_name, options, script
from prefect_ft.backends.slurm.states import end_of
from prefect_ft.backends.slurm.waiting import Waiting
from prefect_ft.errors import BackendError
from prefect_ft.observe import Notice, tell
from prefect_ft.run import certificates_of

FRESH_S = 20.0
"""How old what Slurm says of the end of the present allocation may be, once that is near."""

ORPHAN_S = 600.0
"""How long node servers wait for an orchestrator that have no agent."""

BEING_ENDED_S = 45.0
"""How long what ends an allocation is asked for while that is being ended: more than Slurm's KillWait."""

_log = logging.getLogger(__name__)


class Lending:
    """Gets the nodes of one run."""

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
        self._waits = Waiting(infrastructure, self._allocations, self._slurm, self._queue)

    # -- the present one ----------------------------------------------------------------------------

    def tenure(self, is_stopped: Callable[[], bool]) -> Tenure | None:
        """Return the tenure that the run has, or the next one; None: `is_stopped` says so. Raises BackendError."""
        payload = self._prepare()
        here = job_here(os.environ)
        while True:
            job = here or self._waiting() or self._submit(payload)
            if here is not None and self._allocations.of_job(here) is None:
                self._hold_here(payload)
            self._do_without(
                *{base for base in self._allocations.further.values() if base not in (None, job)}
            )
            allocation = self._joined(self._waits.until_it_begins(job, is_stopped))
            if allocation is not None and (
                (nodes := self._answering(allocation)) or not self._waits.gives_back(job)
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

    def _prepare(self) -> Path:
        """Have there what nodes need to begin; return the directory of their code."""
        place, certificates = self._place, certificates_of(self._place.run_root)
        self._allocations.point_from(place.directory, self._name)
        return self._allocations.prepare(
            self._infrastructure, certificates, run_id=place.run_id, key=place.key, orphan_timeout_s=ORPHAN_S
        )

    def _waiting(self) -> str | None:
        """Return the first job of the run that has not ended, as far as is known; None: there is none.

        Raises BackendError where an orchestrator died while it submitted one, and Slurm does not say whether it has.
        """
        if self._allocations.is_submitting:
            found = self._slurm.named(self._name)
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

    @property
    def _name(self) -> str:
        return job_name(self._place.job, self._place.run_id)

    def _joined(self, allocation: Allocation | None) -> Allocation | None:
        """Return an allocation with those that have been joined to it."""
        now = self._allocations.current
        if allocation is None or now is None or parts_of(now)[0] != allocation.name:
            return allocation
        return self._allocations.named(now)

    def _submit(
        self, payload: Path, *more: str, given: SlurmInfrastructure | None = None, more_for: str | None = None
    ) -> str:
        """Submit a job as `given`, else as the run's infrastructure, says; `more_for`: to add nodes to that job."""
        place, name = self._place, self._name
        given = given or self._infrastructure
        path = self._allocations.directory / "holder.sh"
        path.write_text(script(given.python, payload, self._allocations.directory))
        log = self._allocations.directory / "holder-%j.log"
        avoided = self._allocations.avoided
        words = options(given, name=name, log=log, cwd=place.model_dir, exclude=list(avoided))
        self._allocations.begin_submission(more_for=more_for)
        job = self._slurm.submit([*words, *more, str(path)])
        self._allocations.note(job)
        count = (given.nodes or 1) + given.spares
        tell(Notice(text=f"submitted job {job} to Slurm: {count} node{'' if count == 1 else 's'}"))
        return job

    def _hold_here(self, payload: Path) -> None:
        """Start the node servers of the allocation that this process is in, by a process that outlives this one."""
        words = (
            self._infrastructure.python,
            "-I",
            "-S",
            str(payload),
            "holder",
            str(self._allocations.directory),
        )
        with (self._allocations.directory / "holder.log").open("ab") as log:
            subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

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
        """Have links to the node servers of an allocation while entered."""
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
        """Return a tenure with the end that it has now; what Slurm does not say stays as it was."""
        try:
            told = self._queue.state(job_of(tenure.name), within_s=FRESH_S)
        except LookupError:
            return tenure
        return tenure if told is None or told.ends_s is None else replace(tenure, ends_s=told.ends_s)

    # -- what comes after ---------------------------------------------------------------------------

    def end_of(self, name: str) -> TenureEnd:
        """Return how an earlier tenure ended; what is being ended is waited for, but not for a lost node."""
        deadline, pause_s, job = time.monotonic() + BEING_ENDED_S, 1.0, job_of(name)
        life = life_of(name)
        while (told := self._slurm.last_known(job, life)) is not None and told.state == "COMPLETING":
            if time.monotonic() > deadline:
                break
            time.sleep(pause_s)
            pause_s *= 1.5
        return end_of(told, name)

    def growth(self, tenure: Tenure) -> Growth:
        """Return what asks for the nodes that a tenure lacks."""
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
        return self._submit(self._prepare(), given=given, more_for=job_of(tenure.name))

    def join(self, tenure: Tenure) -> bool:
        """Have the next tenure be this one with the further jobs that there are; False: it is itself being ended."""
        first = self._allocations.named(parts_of(tenure.name)[0])
        if first is None or self._allocations.has_ended(first.name):
            return False
        with self._linked(first) as links:
            if any(is_going(links)):
                return False
        self._allocations.join(tenure.name)
        return True

    def release(self, tenure: Tenure) -> None:
        """Have the nodes of a tenure given back, and what was asked for to go with them."""
        self._do_without(job_of(tenure.name))
        if not tenure.contains_us:
            self._allocations.release(tenure.name)

    def _do_without(self, *bases: str | None) -> None:
        """Give back, or take from the queue, the further jobs for these jobs."""
        for job in [each for base in bases if base for each in self._allocations.further_for(base)]:
            if (begun := self._allocations.of_job(job)) is not None:
                self._allocations.release(begun.name)
            elif (wrong := self._slurm.cancel([job])) is not None:
                _log.warning("job %s may be left in the queue: %s", job, wrong)
                continue
            self._allocations.forget(job)

    def succeed(self, tenure: Tenure) -> str | None:
        """Queue what follows a tenure. Raises BackendError."""
        if not self._infrastructure.hand_over or tenure.ends_s is None:
            return None
        job = job_of(tenure.name)
        later = self._after(job)
        if later is not None:
            return f"job {later}"
        more = (
            []
            if self._infrastructure.queue_deadline is None
            else [f"--deadline={self._infrastructure.queue_deadline}"]
        )
        if tenure.contains_us:
            return f"job {self._again(job, more)}"
        return f"job {self._submit(self._prepare(), '--dependency=singleton', *more)}"

    def _after(self, job: str) -> str | None:
        """Return the job that has been queued to follow another one, if it has not ended."""
        known = self._allocations.successive
        behind = known[known.index(job) + 1 :] if job in known else known
        return next((each for each in behind if not self._waits.is_over(each)), None)

    def _again(self, job: str, more: Sequence[str]) -> str:
        """Queue the batch script of the allocation that this process is in once more."""
        path = self._allocations.directory / f"again-{job}.sh"
        self._slurm.batch_script(job, str(path))
        exported = f"--export=ALL,{SUCCESSOR_OF}={self._place.run_id}"
        limit = self._slurm.time_limit(job)  # one that was given on the command line stands nowhere else
        words = [
            *([] if limit is None else [f"--time={limit}"]),
            f"--dependency=afterany:{job}",
            exported,
            "--open-mode=append",
            *more,
            *asked_for(os.environ),
        ]
        later = self._slurm.submit([*words, str(path)])
        self._allocations.note(later)
        return later


def asked_for(env: os._Environ[str] | dict[str, str]) -> list[str]:
    """Return sbatch's options by which the allocation of this environment was had, where the environment tells them."""
    names = {
        "SLURM_JOB_NUM_NODES": "--nodes", "SLURM_JOB_PARTITION": "--partition", "SLURM_JOB_ACCOUNT": "--account",
        "SLURM_JOB_QOS": "--qos", "SLURM_JOB_NAME": "--job-name",
    }  # fmt: skip
    found = [
        f"{option}={env[name]}" for name, option in names.items() if env.get(name) not in (None, "", "(null)")
    ]
    return [*found, f"--chdir={env.get('SLURM_SUBMIT_DIR', os.getcwd())}"]
