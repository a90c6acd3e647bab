"""The allocations of one run: submitted or found, waited for, followed by others, given back.

The allocation that this process is in is somebody's own: it is used, and never ended.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from prefect_ft.backends.direct import DirectWay
from prefect_ft.backends.kind import SUCCESSOR_OF, Place, Tenure, TenureEnd
from prefect_ft.backends.slurm.allocations import (
    Allocation,
    Allocations,
    job_of,
    jobs_left,
    life_of,
    parts_of,
    recorded_in,
)
from prefect_ft.backends.slurm.backend import answering, links_to
from prefect_ft.backends.slurm.commands import Slurm, check_commands, job_here, run
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.backends.slurm.growing import Growth, further
from prefect_ft.backends.slurm.queue import Queue, shared_directory
from prefect_ft.backends.slurm.script import job_name, options, script
from prefect_ft.backends.slurm.states import JobState, end_of
from prefect_ft.clock import utc_at
from prefect_ft.config.fields import shown
from prefect_ft.errors import BackendError, ConfigError, TenureCancelledError
from prefect_ft.observe import Notice, tell
from prefect_ft.run import certificates_of
from prefect_ft.worker.holder import ENDED

LOOK_S = (0.2, 2.0)
"""How often it is looked whether an allocation has begun, at first and at last: at files, without asking Slurm."""

SPARES_S = 30.0
"""How long spares are waited for once there are nodes for all workers."""

ASK_S = (60.0, 300.0)
"""How old may be what Slurm says of a job that is waited for: at first, and at last."""

FRESH_S = 20.0
"""How old what Slurm says of the end of the present allocation may be, once that is near."""

ORPHAN_S = 600.0
"""How long node servers wait for an orchestrator that have no agent."""

MOST_TRIES = 3
"""How often a job is submitted anew, in one life of an orchestrator, whose nodes have not begun."""

KILLED = frozenset(("COMPLETING", "FAILED", "RUNNING"))
"""States of a job whose batch step was killed, or lost with its node, and has not said why it ends."""

NOT_ITS_FAULT = ("BOOT_FAIL", "CANCELLED", "NODE_FAIL", "PREEMPTED")
"""States in which a job ends that others or its nodes have kept from beginning; root cancels one that cannot launch."""

BEING_ENDED_S = 45.0
"""How long what ends an allocation is asked for while that is being ended: more than Slurm's KillWait."""

GIVE_BACK_S = 10.0
"""How long a holder may take to end before its job is cancelled."""

_log = logging.getLogger(__name__)


def check(infrastructure: SlurmInfrastructure, field: str) -> None:
    """Raise ConfigError for the first thing by which no allocation could be had."""
    check_commands(f"{field}.type")
    if job_here(os.environ) is not None:
        check_room(infrastructure, os.environ.get("SLURM_JOB_NUM_NODES", ""), field)
        return
    if infrastructure.nodes is None:
        raise ConfigError(
            "missing; without an allocation around, say how many to ask for", field=f"{field}.nodes"
        )
    if infrastructure.partition is not None:
        check_partition(infrastructure.partition, Slurm().partitions(), f"{field}.partition")
    words = options(infrastructure, name="prefect-ft-check", log=Path("/dev/null"), cwd=Path("/"))
    said = run(("sbatch", "--test-only", *words, "--wrap=true"), 60.0)
    if not said.ok and "no answer in" not in said.err:
        raise ConfigError(f"Slurm refuses it: {said.err or said.out}", field=field)


def check_room(infrastructure: SlurmInfrastructure, count: str, field: str) -> None:
    """Raise ConfigError where the allocation around has too few nodes; `count` is how many, as Slurm says it."""
    wanted = infrastructure.nodes if infrastructure.nodes is not None else infrastructure.spares + 1
    if count.isdecimal() and wanted > int(count):
        name = "nodes" if infrastructure.nodes is not None else "spares"
        raise ConfigError(f"the allocation around has {count} nodes; write fewer", field=f"{field}.{name}")


def check_partition(names: str, known: set[str] | None, field: str) -> None:
    """Raise ConfigError for a partition that there is not; what could not be asked (None) is not held against it."""
    for name in names.split(","):
        if known is not None and name not in known:
            raise ConfigError(
                f"there is no partition {shown(name)}; there are {', '.join(sorted(known))}", field=field
            )


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
        self._tries = 0
        """How often a job has been had anew."""
        self._reasons: dict[str, str] = {}
        """Why jobs wait, as it was told last."""
        self._queue = queue or Queue(self._slurm.queue, shared_directory(os.environ))

    # -- the present one ----------------------------------------------------------------------------

    def tenure(self, is_stopped: Callable[[], bool]) -> Tenure | None:
        """Return the tenure that the run has, or the next one; None: `is_stopped` says so. Raises BackendError."""
        payload = self._prepare()
        here = job_here(os.environ)
        while True:
            job = here or self._waiting() or self._submit(payload)
            if here is not None and self._allocations.of_job(here) is None:
                self._hold_here(payload)
            allocation = self._joined(self._await(job, is_stopped))
            if allocation is not None and (
                (nodes := self._answering(allocation)) or not self._is_done_without(job)
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
            if not self._is_over(job):
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

    def _await(self, job: str, is_stopped: Callable[[], bool]) -> Allocation | None:
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
                if self._is_over(job, within_s=pause_s):
                    self._not_begun(job, "", was_killed=allocation is not None)
                    return None
                pause_s = min(1.5 * pause_s, ASK_S[1])
                ask_at = time.monotonic() + pause_s
            look_s = LOOK_S[0] if allocation is not None else min(1.05 * look_s, LOOK_S[1])
            time.sleep(look_s)
        return None

    def _is_over(self, job: str, within_s: float = 1.0) -> bool:
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

    def _answering(self, allocation: Allocation) -> tuple[str, ...]:
        """Return the nodes whose servers answer, in Slurm's order."""
        place = self._place
        certificates = certificates_of(place.run_root)
        way = DirectWay(certificates.orchestrator(), 0, self._infrastructure.silence_timeout_s)
        links = links_to(allocation, self._allocations, way, run_id=place.run_id, key=place.key)
        try:
            found = answering(links)
            nodes = tuple(node for node in allocation.nodes if node in found)
        finally:
            for link in links.values():
                link.close()
        for node in allocation.nodes if nodes else ():
            if node not in nodes:
                tell(Notice(text=f"node {node} of {allocation.name} does not answer; it is left out"))
        return nodes

    def _is_done_without(self, job: str) -> bool:
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
            is_over=self._is_over,
            submit=lambda count: self._submit_more(tenure, count),
            cancel=lambda job: self._slurm.cancel([job]),
            start_timeout_s=self._infrastructure.start_timeout_s,
            settle_s=self._infrastructure.lost_ranks_last_s() or 0.0,
        )

    def _submit_more(self, tenure: Tenure, count: int) -> str:
        given = further(self._infrastructure, count, tenure.ends_s, env=os.environ)
        return self._submit(self._prepare(), given=given, more_for=job_of(tenure.name))

    def join(self, tenure: Tenure) -> None:
        """Have the next tenure be this one with the nodes of the further job that has begun."""
        self._allocations.join(tenure.name)

    def release(self, tenure: Tenure) -> None:
        """Have the nodes of a tenure given back, and what was asked for to go with them."""
        base = job_of(tenure.name)
        for job in [job for job, each in self._allocations.further.items() if each == base]:
            if (begun := self._allocations.of_job(job)) is not None:
                self._allocations.release(begun.name)
            elif (wrong := self._slurm.cancel([job])) is not None:
                _log.warning("job %s may be left in the queue: %s", job, wrong)
        self._allocations.release(tenure.name)

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
        return next((each for each in behind if not self._is_over(each)), None)

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


def may_begin(given: SlurmInfrastructure, answering: int, nodes: int, waited_s: float) -> bool:
    """Whether a run may begin where so many of an allocation's nodes answer.

    With all of them at once, without some spares soon, with what there is after `start_timeout_s`.
    """
    workers = given.nodes or max(1, nodes - given.spares)
    has_workers = answering >= workers and waited_s > SPARES_S
    return answering == nodes or has_workers or (answering > 0 and waited_s > given.start_timeout_s)


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


def standing(run_root: Path) -> list[str]:
    """Return in words what a run has of Slurm, by its files."""
    allocations = Allocations(run_root)
    name, said = allocations.current, []
    found = None if name is None else allocations.named(name)
    if found is not None and not allocations.has_ended(found.name):
        until = "" if found.ends_s is None else f" until {utc_at(found.ends_s)}"
        count = len(found.nodes)
        said.append(f"Slurm job {found.job}: {count} node{'' if count == 1 else 's'}{until}")
    said += [f"Slurm job {job} is in the queue: squeue --start -j {job}" for job in allocations.waiting]
    return said


def clear(directory: Path) -> None:
    """Give back what the run of a run-time directory has of Slurm; an allocation around a process is its owner's."""
    allocations = recorded_in(directory)
    if allocations is None:
        name, jobs = jobs_left(directory)
        if name and (wrong := Slurm().cancel(jobs, f"--name={name}")) is not None:
            _log.warning("jobs %s may be left: %s", ", ".join(jobs), wrong)
        return
    slurm, jobs = Slurm(), allocations.submitted
    if (wrong := slurm.cancel(jobs, "--state=PENDING")) is not None:
        _log.warning("jobs %s may be left in the queue: %s", ", ".join(jobs), wrong)
    names = [path.name for path in allocations.directory.glob("slurm-*")]
    for name in names:
        allocations.release(name)
    own = [name for name in names if job_of(name) in jobs]
    deadline = time.monotonic() + GIVE_BACK_S
    while own and time.monotonic() < deadline:
        own = [name for name in own if not (allocations.directory / name / ENDED).exists()]
        time.sleep(LOOK_S[0])
    if (wrong := slurm.cancel([job_of(name) for name in own])) is not None:
        _log.warning("the allocation may be left: %s", wrong)
