"""A phase as a Prefect task: every restart is one retry of it, decided by a custom retry handler.

The journal is the truth and Prefect the view, which may come late: a run is executed in one thread, and Prefect enters
its tasks in another, which follow. Run counts and states are Prefect's own, and nothing here reads them back.
"""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import index
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
from prefect_ft.config import AutoRestart, Checkpoints, JobConfig
from prefect_ft.decide import with_verdict
from prefect_ft.decide.classify import classify
from prefect_ft.errors import ConfigError
from prefect_ft.journal.judge import judge
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.summary import PhaseSummary
from prefect_ft.model import RESTARTS, Incident, Policy
from prefect_ft.orchestrate import preflight
from prefect_ft.orchestrate.entering import Entered
from prefect_ft.orchestrate.executing import execute
from prefect_ft.orchestrate.live import Live, Stage
from prefect_ft.orchestrate.metrics import serving
from prefect_ft.orchestrate.run import begin_run, held
from prefect_ft.plaintext import as_line
from prefect_ft.prefect_edge.embedded import own_server
from prefect_ft.prefect_edge.timeouts import heeding_timeouts
from prefect_ft.run import vacancy
from prefect_ft.supervisor import AttemptFailedError
from prefect_ft.supervisor.bucket import Bucket
from prefect_ft.worker.checkpoints import Finder
from prefect_ft.worker.checkpoints.entry import FILE_SYSTEM

own_server()  # on import: a user's own flow starts it before calling anything of ours

DRAIN_S = 15.0
"""How long the end of a run waits until Prefect's engine has left the last task."""

RETRIES = 1_000_000
"""Prefect's own limit, which must never be reached. The policy has the budgets."""

_logger = logging.getLogger(__name__)

Progress = Callable[[], "int | None"]
"""Returns the saved step; None: unknown."""

Handler = Callable[["Task[..., Any]", TaskRun, "State[Any]"], bool]


def restart_handler(
    policy: Policy | AutoRestart,
    *,
    journal: MemoryJournal | None = None,
    progress: Progress | None = None,
    checkpoints: str | os.PathLike[str] | Checkpoints | None = None,
) -> Handler:
    """Return a `retry_condition_fn` that restarts a task of your own as `policy` decides.

    `@task(retries=…, retry_condition_fn=restart_handler(AutoRestart(max_num_restarts=3)))`: Prefect asks it
    before it retries, so `retries` should be more than the policy allows. Each decision is recorded in
    `journal` before it takes effect. Without one, each run of the task has a history of its own, which ends
    with the process; a given journal is one history for all runs, in all threads of this process, and
    keeps the handler from being sent to another: docs/prefect.md says what that means for each task runner.
    `progress` is called after each failure and returns the saved step, None: unknown. `checkpoints`
    is where the task saves instead, and is scanned then. A failure after a higher step resets the budget; with
    neither, nothing does. What `progress` raises is logged, and the step counts as unknown.
    A policy with `restart_delay_s` sets the task's `retry_delay_seconds`. JournalError is logged by Prefect,
    and nothing is restarted. Raises ConfigError where both sources of steps are given.
    """
    step_now = _source_of_steps(progress, checkpoints)
    known = policy if isinstance(policy, Policy) else policy.onto(Policy(systems=("localhost",), workers=1))
    clock = PhaseClock(journal.last_t if journal is not None else 0.0)
    histories = _Histories(MemoryJournal)

    # A plain function, because Prefect silently ignores callable objects and bound methods here.
    def handler(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
        history = histories[task_run.id] if journal is None else journal
        logger = task_run_logger(task_run, task)
        incident = replace(_incident_of(state, clock.now()), step=_step(step_now, logger))
        decision = judge(history, known, incident, clock)
        logger.warning(
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


def _source_of_steps(
    progress: Progress | None, checkpoints: str | os.PathLike[str] | Checkpoints | None
) -> Progress:
    """Return the function that finds the step that a user's own task has saved."""
    if checkpoints is None:
        return progress or (lambda: None)
    if progress is not None:
        raise ConfigError("cannot be combined with progress; pass one of the two", field="checkpoints")
    places = checkpoints if isinstance(checkpoints, Checkpoints) else Checkpoints(path=os.fspath(checkpoints))

    def highest() -> int | None:
        """Scan again: the handler may be in any thread, and in a process that has never scanned."""
        where = places.path if places.is_remote else os.path.expanduser(places.path)
        place = Bucket(where) if places.is_remote else FILE_SYSTEM
        finder = Finder(where, places.layout, places.pattern, places.settle_s, place=place)
        found = finder.scan(time.time() + places.settle_s)  # the task has ended, so no writer is left
        return max((each.step for each in found), default=None)

    return highest


def _step(step_now: Progress, logger: Any) -> int | None:
    """Return the saved step; None: unknown."""
    try:
        step = step_now()
        return None if step is None else max(0, index(step))
    except Exception:  # an error of the user's function
        logger.warning("cannot find out which step is saved", exc_info=True)
        return None


class _Histories(defaultdict[UUID, MemoryJournal]):
    """The histories of task runs in this process; another process starts with none."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Histories, (MemoryJournal,)


def _incident_of(state: State[Any], t: float) -> Incident:
    """Return the failure of a user's own task as an incident."""
    error: Any = state.data
    is_raised = isinstance(error, BaseException)
    text = "".join(traceback.format_exception(error)) if is_raised else state.message or ""
    lines = text.encode("utf-8", "replace").decode("utf-8").splitlines()
    return with_verdict(Incident(t=t, kind="exit", exit_code=1), classify({"": lines}, exit_code=1))


class Attempts:
    """A phase's attempts, as shown to Prefect: one each time that it enters the task."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._shown = 0

    def next_end(self) -> AttemptFailedError | None:
        """Wait for the next attempt's end; None: the phase is complete. Raises what kept the phase from an end."""
        error = self._stage.end_of(self._shown)
        self._shown += 1
        return error


# A plain function: see `restart_handler`.
def _phase_handler(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Restart as decided about the end of this attempt; any other end of the task ends the phase."""
    error: Any = state.data
    if not isinstance(error, AttemptFailedError):
        return False
    return error.decision is not None and error.decision.action in RESTARTS


@task(
    cache_policy=NO_CACHE,
    retries=RETRIES,
    retry_delay_seconds=0,
    persist_result=False,
    retry_condition_fn=_phase_handler,
)
def train_phase(attempts: Attempts) -> State[Any] | None:
    """Follow one attempt of a phase; Prefect enters the task again for each restart."""
    error = attempts.next_end()
    if error is None:
        return None
    if error.decision is not None and error.decision.cancels:
        return Cancelled(message=as_line(error.decision.reason))
    raise error


def show(live: Live) -> None:
    """Show a run's phases as tasks of the flow that calls this, until the run is over. Raises nothing."""
    for stage in live.stages():
        phase_task = train_phase.with_options(name=stage.name, task_run_name=stage.name)
        try:
            phase_task(Attempts(stage))
        except (CancelledRun, AttemptFailedError):
            pass
        except BaseException:  # the run's errors are raised where it is executed; Prefect's do not end it
            _logger.debug("phase %s ended with an error", stage.name, exc_info=True)


@contextmanager
def shown(live: Live) -> Iterator[None]:
    """Show a run's phases as tasks of the flow that calls this, in a thread of their own, while entered."""
    # Prefect finds the flow run in the context of whatever calls a task.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(show, live), name="prefect-ft-tasks", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(DRAIN_S)


def run_phase(job: JobConfig, phase: int | str = 0) -> PhaseSummary:
    """Run one phase of a job to its end, as a task of the flow that calls this; return what it cost.

    `phase` is a name or an index. It is a run of its own. A phase that gives up results in a summary with `status`
    `failed`, not in an exception. Raises ConfigError, RunHeldError or UnfinishedRunError for a model directory
    that has a run which has not ended, and SystemHeldError for a system that serves another one, before
    anything starts; JournalError if the journal cannot be written, LeaseLostError if another orchestrator has
    taken the run over. Relative paths start at the working directory.
    """
    job = job.at(Path.cwd())
    only = job.model_copy(update={"phases": (job.phases[_index(job, phase)],)})
    preflight.check(only)
    entered = Entered(only, begin_run(only, vacancy(Path(job.model_dir), job.lease_s)))
    live = Live()
    with (
        held(entered.holding, only) as (_, stop),
        heeding_timeouts(stop.ask),
        serving(job.metrics, entered.holding.run),
        shown(live),
    ):
        return execute(entered, stop, live)


def _index(job: JobConfig, phase: int | str) -> int:
    names = [known.name for known in job.phases]
    if isinstance(phase, str):
        if phase not in names:
            raise ConfigError(f"no phase {phase!r}; the job has {', '.join(names)}", field="phases")
        return names.index(phase)
    if not 0 <= phase < len(names):
        raise ConfigError(f"no phase {phase}; there are {len(names)}, counted from 0", field="phases")
    return phase
