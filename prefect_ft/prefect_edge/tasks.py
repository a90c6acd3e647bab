"""A phase as a Prefect task: every restart is one retry of it, decided by a custom retry handler.

The journal is the truth and Prefect the view: run counts and states are Prefect's own, and nothing here
reads them back.
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable
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

from prefect_ft.clock import PhaseClock
from prefect_ft.config import AutoRestart, JobConfig
from prefect_ft.decide import with_verdict
from prefect_ft.decide.classify import classify
from prefect_ft.errors import ConfigError
from prefect_ft.journal.judge import judge
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.summary import PhaseSummary
from prefect_ft.model import RESTARTS, Decision, Incident, Policy
from prefect_ft.observe import Decided, tell
from prefect_ft.orchestrate import preflight
from prefect_ft.orchestrate.metrics import serving
from prefect_ft.orchestrate.phase import PhaseExecution
from prefect_ft.orchestrate.run import begin_run, held, run_to_its_end
from prefect_ft.plaintext import as_line
from prefect_ft.prefect_edge.embedded import own_server
from prefect_ft.prefect_edge.timeouts import heeding_timeouts
from prefect_ft.run import Holding, vacancy
from prefect_ft.supervisor import AttemptFailedError, StopRequest, Supervisor

own_server()  # at once: a flow of a user's own has it started before it calls anything of ours

RETRIES = 1_000_000
"""What Prefect is told: it must never be the one who stops. The budgets are the policy's."""

Handler = Callable[["Task[..., Any]", TaskRun, "State[Any]"], bool]


def restart_handler(policy: Policy | AutoRestart, *, journal: MemoryJournal | None = None) -> Handler:
    """Return a `retry_condition_fn` that restarts a task of your own as `policy` decides.

    `@task(retries=…, retry_condition_fn=restart_handler(AutoRestart(max_num_restarts=3)))`: Prefect asks it
    before it retries, so `retries` should be more than the policy allows. Each decision is recorded in
    `journal` before it takes effect. Without one each run of the task has a history of its own, which ends
    with the process; a journal that is given is one history for all runs, in all threads of this process, and
    keeps the handler from being sent to another: docs/prefect.md says what that means for each task runner.
    A policy with `restart_delay_s` sets the task's `retry_delay_seconds`. JournalError is logged by Prefect,
    and nothing is restarted.
    """
    known = policy if isinstance(policy, Policy) else policy.onto(Policy(systems=("localhost",), workers=1))
    clock = PhaseClock(journal.last_t if journal is not None else 0.0)
    histories = _Histories(MemoryJournal)

    # A plain function, because Prefect silently ignores callable objects and bound methods here.
    def handler(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
        history = histories[task_run.id] if journal is None else journal
        decision = judge(history, known, _incident_of(state, clock.now()), clock)
        task_run_logger(task_run, task).warning(
            "rule=%s action=%s delay_s=%g: %s",
            decision.rule,
            decision.action,
            decision.delay_s,
            as_line(decision.reason),
        )
        if known.restart_delay_s:
            task.retry_delay_seconds = decision.delay_s  # type: ignore[assignment]  # its declared type is too narrow
        if decision.action not in RESTARTS:
            histories.pop(task_run.id, None)
        return decision.action in RESTARTS

    return handler


class _Histories(defaultdict[UUID, MemoryJournal]):
    """The histories of task runs in this process; another process begins with none."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Histories, (MemoryJournal,)


def _incident_of(state: State[Any], t: float) -> Incident:
    """Return the incident that the failure of a user's own task is."""
    error: Any = state.data
    is_raised = isinstance(error, BaseException)
    text = "".join(traceback.format_exception(error)) if is_raised else state.message or ""
    lines = text.encode("utf-8", "replace").decode("utf-8").splitlines()
    return with_verdict(Incident(t=t, kind="exit", exit_code=1), classify({"": lines}, exit_code=1))


def _phase_handler(phase: PhaseExecution, begin: Callable[[Decision], None]) -> Handler:
    """Return a phase's handler: the end of an attempt is judged, anything else ends the phase.

    `begin` is called with the decision for a restart, before Prefect enters the task again.
    """
    plan = phase.plan

    def handler(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
        error: Any = state.data
        if not isinstance(error, AttemptFailedError):
            return False
        if error.decision is None:
            try:
                error.decision = judge(
                    phase.journal, plan.policy, error.incident, phase.clock, gate=phase.gate, **error.facts
                )
            except Exception as exc:
                error.__cause__ = exc  # Prefect would take it for a plain "no" and lose it
                return False
            attempt = error.incident.attempt or 0
            tell(Decided(phase=plan.phase, attempt=attempt, incident=error.incident, decision=error.decision))
        if error.decision.action not in RESTARTS:
            return False
        begin(error.decision)
        return True

    return handler


@task(cache_policy=NO_CACHE, retries=RETRIES, retry_delay_seconds=0, persist_result=False)
def train_phase(supervisor: Supervisor) -> State[Any] | None:
    """Run one attempt of a phase; Prefect enters it again for each restart."""
    try:
        supervisor.attempt()
    except AttemptFailedError as error:
        if error.decision is None or error.decision.action != "cancel":
            raise
        return Cancelled(message=as_line(error.decision.reason))
    return None


def run_phase(job: JobConfig, phase: int | str = 0) -> PhaseSummary:
    """Run one phase of a job to its end, as a task of the flow that calls this; return what it cost.

    `phase` is a name or an index. It is a run of its own. A phase that gives up is a summary with `status`
    `failed`, not an exception. Raises ConfigError, RunHeldError or UnfinishedRunError for a model directory
    that has a run which has not ended, and SystemHeldError for a system that serves another one, before
    anything starts; JournalError if the journal cannot be written, LeaseLostError if another orchestrator has
    taken the run over. Relative paths start at the working directory.
    """
    job = job.at(Path.cwd())
    only = job.model_copy(update={"phases": (job.phases[_index(job, phase)],)})
    preflight.check(only)
    with (
        held(begin_run(only, vacancy(Path(job.model_dir), job.lease_s)), only) as (holding, stop),
        heeding_timeouts(stop.ask),
        serving(job.metrics, holding.run),
    ):
        return run_to_its_end(holding, stop, lambda: execute_phase(only, 0, holding, stop))


def execute_phase(
    job: JobConfig, index: int, holding: Holding, stop: StopRequest, *, by_hand: bool = False
) -> PhaseSummary:
    """Run a phase of a job that has been checked, with absolute paths, until it ends or `stop` is wanted."""
    phase = PhaseExecution(job, index, holding, stop)
    return phase.execute(lambda supervisor: _run_attempts(phase, supervisor), by_hand=by_hand)


def _run_attempts(phase: PhaseExecution, supervisor: Supervisor) -> None:
    """Have Prefect run the phase's attempts."""
    plan = phase.plan
    handler = _phase_handler(phase, supervisor.begin)
    phase_task = train_phase.with_options(
        name=plan.phase, task_run_name=plan.phase, retry_condition_fn=handler
    )
    try:
        phase_task(supervisor)
    except CancelledRun:
        pass
    except AttemptFailedError as error:
        if error.decision is None:
            raise error.__cause__ or error from None


def _index(job: JobConfig, phase: int | str) -> int:
    names = [known.name for known in job.phases]
    if isinstance(phase, str):
        if phase not in names:
            raise ConfigError(f"no phase {phase!r}; there are: {', '.join(names)}", field="phases")
        return names.index(phase)
    if not 0 <= phase < len(names):
        raise ConfigError(f"no phase {phase}; there are {len(names)}, counted from 0", field="phases")
    return phase
