"""A phase as a Prefect task: every restart is one retry of it, decided by a custom retry handler.

The journal is the truth and Prefect the view: run counts and states are Prefect's own, and nothing here
reads them back.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.exceptions import CancelledRun
from prefect.logging.loggers import task_run_logger
from prefect.states import Cancelled
from prefect.tasks import Task

from prefect_ft import preflight
from prefect_ft.backends.base import AgentSettings, Backend
from prefect_ft.backends.process import ProcessBackend, visible_accelerators
from prefect_ft.clock import PhaseClock, utc_now
from prefect_ft.config import AutoRestart, JobConfig, Phase, own_signatures, resolved
from prefect_ft.decide import with_verdict
from prefect_ft.decide.classify import classify, with_own
from prefect_ft.errors import ConfigError, JournalError
from prefect_ft.journal import Journal, MemoryJournal
from prefect_ft.judge import judge
from prefect_ft.model import RESTARTS, Decision, Incident, Policy
from prefect_ft.observe import Decided, Notice, PhaseEnded, PhaseStarted, tell
from prefect_ft.run import JOURNAL, PARAMS, SUMMARY, Run, new_run, runtime_directory, write_json, write_yaml
from prefect_ft.summary import PhaseSummary, summarise
from prefect_ft.supervisor import AttemptFailedError, PhasePlan, RunLog, StopRequest, Supervisor

RETRIES = 1_000_000
"""What Prefect is told: it must never be the one who stops. The budgets are the policy's."""

Handler = Callable[["Task[..., Any]", TaskRun, "State[Any]"], bool]


def restart_handler(policy: Policy | AutoRestart, *, journal: MemoryJournal | None = None) -> Handler:
    """Give a `retry_condition_fn` that restarts a task of your own as `policy` decides.

    `@task(retries=…, retry_condition_fn=restart_handler(AutoRestart(max_num_restarts=3)))`: Prefect asks it
    before it retries, so `retries` should be more than the policy allows. Each decision is recorded in
    `journal` before it takes effect. Without one each run of the task has a history of its own, which ends
    with the process; a journal that is given is one history for all runs. A policy with `restart_delay_s`
    sets the task's `retry_delay_seconds`. JournalError is logged by Prefect, and nothing is restarted.
    """
    known = policy if isinstance(policy, Policy) else policy.onto(Policy(systems=("localhost",), workers=1))
    clock = PhaseClock(journal.last_t if journal is not None else 0.0)
    histories: defaultdict[UUID, MemoryJournal] = defaultdict(MemoryJournal)

    # A plain function, because Prefect silently ignores callable objects and bound methods here.
    def handler(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
        history = histories[task_run.id] if journal is None else journal
        decision = judge(history, known, _incident_of(state, clock.now()), clock)
        task_run_logger(task_run, task).warning(
            "rule=%s action=%s delay_s=%g: %s",
            decision.rule,
            decision.action,
            decision.delay_s,
            decision.reason,
        )
        if known.restart_delay_s:
            task.retry_delay_seconds = decision.delay_s  # type: ignore[assignment]  # its declared type is too narrow
        if decision.action not in RESTARTS:
            histories.pop(task_run.id, None)
        return decision.action in RESTARTS

    return handler


def _incident_of(state: State[Any], t: float) -> Incident:
    """Give the incident that the failure of a user's own task is."""
    error: Any = state.data
    is_raised = isinstance(error, BaseException)
    text = "".join(traceback.format_exception(error)) if is_raised else state.message or ""
    lines = text.encode("utf-8", "replace").decode("utf-8").splitlines()
    return with_verdict(Incident(t=t, kind="exit", exit_code=1), classify({"": lines}, exit_code=1))


def _phase_handler(phase: str, policy: Policy, journal: Journal, clock: PhaseClock) -> Handler:
    """Give a phase's handler: the end of an attempt is judged, anything else ends the phase."""

    def handler(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
        error: Any = state.data
        if not isinstance(error, AttemptFailedError):
            return False
        if error.decision is None:
            try:
                error.decision = judge(journal, policy, error.incident, clock, **error.facts)
            except Exception as exc:
                error.__cause__ = exc  # Prefect would take it for a plain "no" and lose it
                return False
            attempt = error.incident.attempt or 0
            tell(Decided(phase=phase, attempt=attempt, incident=error.incident, decision=error.decision))
        return error.decision.action in RESTARTS

    return handler


@task(cache_policy=NO_CACHE, retries=RETRIES, retry_delay_seconds=0, persist_result=False)
def train_phase(supervisor: Supervisor) -> State[Any] | None:
    """Run one attempt of a phase; Prefect enters it again for each restart."""
    try:
        supervisor.attempt()
    except AttemptFailedError as error:
        if error.decision is None or error.decision.action != "cancel":
            raise
        return Cancelled(message=error.decision.reason)
    return None


def run_phase(job: JobConfig, phase: int | str = 0, *, run: Run | None = None) -> PhaseSummary:
    """Run one phase of a job to its end, as a task of the flow that calls this; give what it cost.

    `phase` is a name or an index; `run` the run that it belongs to, a new one if not given. A phase that
    gives up is a summary with `status` `failed`, not an exception. Raises ConfigError before anything
    starts, JournalError if the journal cannot be written. Relative paths start at the working directory.
    """
    index = _index(job, phase)
    job = job.at(Path.cwd())
    preflight.check(job)
    own = run or new_run(Path(job.model_dir), job.name)
    status = "failed"
    try:
        with StopRequest() as stop:
            summary = execute_phase(job, index, own, stop)
        status = summary.status
    finally:
        if run is None:
            with contextlib.suppress(OSError):  # a full disk; the phase's journal says the same
                own.describe(status=status)
    return summary


def execute_phase(job: JobConfig, index: int, run: Run, stop: StopRequest) -> PhaseSummary:
    """Run a phase of a job that has been checked, with absolute paths, until it ends or `stop` is wanted."""
    return _PhaseExecution(job, index, run, stop).execute()


def _index(job: JobConfig, phase: int | str) -> int:
    names = [known.name for known in job.phases]
    if isinstance(phase, str):
        if phase not in names:
            raise ConfigError(f"no phase {phase!r}; there are: {', '.join(names)}", field="phases")
        return names.index(phase)
    if not 0 <= phase < len(names):
        raise ConfigError(f"no phase {phase}; there are {len(names)}, counted from 0", field="phases")
    return phase


class _PhaseExecution:
    """One phase's objects, put together from the job, and taken apart again at its end."""

    def __init__(self, job: JobConfig, index: int, run: Run, stop: StopRequest) -> None:
        self._job, self._run = job, run
        self._runtime = runtime_directory(run.run_id)
        self._directory = run.add_phase(job.phases[index].name, resolved(job))
        self._plan = _plan(job, index, run.run_id, _params_variable(job.phases[index], self._directory))
        self._journal = Journal(_journal_path(job, self._directory, run))
        self._clock = PhaseClock()
        self._log = RunLog(self._directory / "run.log")
        self._supervisor = Supervisor(
            self._plan,
            _backend(job, index, run, self._plan, self._runtime),
            key=run.key,
            epoch=1,
            journal=self._journal,
            clock=self._clock,
            log=self._log,
            stop=stop,
        )

    def execute(self) -> PhaseSummary:
        """Run the phase to its end; whatever happens, no worker is left behind."""
        try:
            self._open()
            decision = self._train()
        except BaseException as exc:
            self._supervisor.close()
            status = "cancelled" if isinstance(exc, KeyboardInterrupt) else "failed"
            with contextlib.suppress(JournalError):  # the error that led here is the one to tell
                self._close(status, str(exc) or repr(exc))
            raise
        self._supervisor.close()
        statuses = {"complete": "completed", "cancel": "cancelled"}
        return self._close(statuses.get(decision.action, "failed"), decision.reason)

    def _open(self) -> None:
        plan = self._plan
        self._journal.append(
            "phase",
            t=0.0,
            utc=utc_now(),
            run=self._run.run_id,
            job=self._job.name,
            phase=plan.phase,
            index=plan.phase_index,
            mode=plan.policy.mode,
            systems=plan.policy.systems,
            workers=plan.policy.workers,
            target_step=plan.policy.target_step,
            version=version("prefect-ft"),
        )
        self._journal.sync()
        self._write_summary()
        tell(
            PhaseStarted(
                run_id=self._run.run_id,
                phase=plan.phase,
                index=plan.phase_index,
                phases=plan.phases,
                directory=self._directory,
                target_step=plan.policy.target_step,
            )
        )

    def _train(self) -> Decision:
        """Have Prefect run the phase's attempts; give the decision that ended it."""
        handler = _phase_handler(self._plan.phase, self._plan.policy, self._journal, self._clock)
        phase_task = train_phase.with_options(
            name=self._plan.phase, task_run_name=self._plan.phase, retry_condition_fn=handler
        )
        try:
            phase_task(self._supervisor)
        except CancelledRun:
            pass
        except AttemptFailedError as error:
            if error.decision is None:
                raise error.__cause__ or error from None
        decision = self._journal.history()[-1].decision
        assert decision is not None
        return decision

    def _close(self, status: str, reason: str) -> PhaseSummary:
        try:
            self._journal.append("end", t=self._clock.now(), utc=utc_now(), status=status, reason=reason)
            self._journal.sync()
        finally:
            summary = self._release()
            tell(PhaseEnded(phase=self._plan.phase, status=status, reason=reason))
        return summary

    def _release(self) -> PhaseSummary:
        if self._log.lost_lines:
            tell(Notice(text=f"{self._log.lost_lines} lines of output could not be written to run.log"))
        self._log.close()
        with contextlib.suppress(OSError):  # not empty: another phase of the run has workers there
            self._runtime.rmdir()
        summary = self._write_summary()
        self._journal.close()
        return summary

    def _write_summary(self) -> PhaseSummary:
        summary = summarise(self._journal.lines)
        try:
            write_json(self._directory / SUMMARY, summary.to_json())
        except OSError as exc:
            remedy = "`prefect-ft report` reads the journal"
            tell(Notice(text=f"{SUMMARY} cannot be written: {exc.strerror}; {remedy}"))
        return summary


def _journal_path(job: JobConfig, directory: Path, run: Run) -> Path:
    """Give the place of a phase's journal; one that lies elsewhere is linked into the phase's directory."""
    link = directory / JOURNAL
    if job.journal_dir is None:
        return link
    link.symlink_to(Path(job.journal_dir) / f"{run.run_id}-{directory.name}.jsonl")
    return link


def _params_variable(phase: Phase, directory: Path) -> dict[str, str]:
    """Write the file that the command is handed, if any; give the variable that says where it is."""
    if phase.params is None:
        return {}
    path = directory / PARAMS
    write_yaml(path, phase.params)
    return {"PREFECT_FT_PARAMS": str(path.absolute())}


def _plan(job: JobConfig, index: int, run_id: str, variables: Mapping[str, str]) -> PhasePlan:
    """Resolve a phase; `variables` are the run's own beside those that the job gives its ranks."""
    phase = job.phases[index]
    env = {**job.env_of(index), **variables}
    return PhasePlan(
        run_id=run_id,
        phase=phase.name,
        phase_index=index,
        phases=len(job.phases),
        command=_command(phase),
        cwd=str(phase.cwd),
        inherited=frozenset(os.environ),
        env=env,
        system_env=_system_env(job, index),
        ranks_per_worker=_ranks_per_worker(phase, env),
        has_checkpoints=phase.checkpoints is not None and phase.mode != "eval",
        hang_detect_time_s=job.hang_detect_time_s(index),
        stop_grace_s=job.stop_grace_s,
        policy=job.policy(index),
        catalogue=with_own(own_signatures(job.signatures)),
    )


def _command(phase: Phase) -> tuple[str, ...]:
    """`python` as the first word is the interpreter of the flow itself; no other word is rewritten."""
    first, *rest = phase.command
    return (sys.executable if first == "python" else first, *rest)


def _ranks_per_worker(phase: Phase, env: Mapping[str, str]) -> int:
    if phase.nproc_per_worker == "auto":
        return visible_accelerators({**os.environ, **env}) or 1
    return phase.nproc_per_worker


def _system_env(job: JobConfig, index: int) -> dict[str, Mapping[str, str]]:
    return {system.name: system.env for system in job.infrastructure_of(index).systems}


def _backend(job: JobConfig, index: int, run: Run, plan: PhasePlan, runtime: Path) -> Backend:
    checkpoints = job.phases[index].checkpoints
    settings = AgentSettings(
        run_id=run.run_id,
        key=run.key,
        phase_index=index,
        sample_period_s=job.sample_period_s,
        orphan_timeout_s=job.orphan_timeout_s,
        spool_bytes=job.spool_mb << 20,
        checkpoints=checkpoints.model_dump() if checkpoints is not None and plan.has_checkpoints else None,
    )
    return ProcessBackend(settings, runtime, plan.system_env)
