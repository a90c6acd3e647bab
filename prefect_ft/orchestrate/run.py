"""A run as a whole: begun, resumed after its orchestrator died, ended. Knows nothing of Prefect."""

from __future__ import annotations

import contextlib
import os
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from prefect_ft.backends.clearing import clear_directory
from prefect_ft.backends.kind import kind_of
from prefect_ft.config import JobConfig, RecordedJob, read_recorded, recorded, secrets_of, with_secrets
from prefect_ft.errors import (
    ComebackError,
    ConfigError,
    LeaseLostError,
    NewerFormatError,
    NotStartedError,
    UnfinishedRunError,
)
from prefect_ft.formats import check_run, how_to_get
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import CheckpointLine, EndLine, Line
from prefect_ft.journal.summary import PhaseSummary
from prefect_ft.observe import Notice, tell
from prefect_ft.orchestrate.earlier import summary_of, unfinished_directory
from prefect_ft.orchestrate.phase import PhaseExecution
from prefect_ft.orchestrate.placing import placed_on
from prefect_ft.orchestrate.preflight import check_engines, check_kept, quarantined
from prefect_ft.run import JOURNAL, Holding, Run, Vacancy, new_run_id, runtime_directory, systems
from prefect_ft.run.identity import PROCESSES_ON
from prefect_ft.run.lookup import phases_of
from prefect_ft.run.machine import this_machine
from prefect_ft.run.ownership import check_own, own_runtime, recorded_runtime, removable_runtime
from prefect_ft.run.runtime import runtime_root
from prefect_ft.supervisor import AttemptFailedError, HandedOverError, StopRequest, Supervisor

ON_SIGTERM, LEAVE = "PREFECT_FT_ON_SIGTERM", "leave"
"""With this variable, SIGTERM leaves a run for the next orchestrator instead of cancelling it."""


def begin_run(job: JobConfig, free: Vacancy, *, flow_run_id: str | None = None) -> Holding:
    """Begin a run of a job with absolute paths.

    Raises UnfinishedRunError if the run in the model directory has not ended, RunHeldError if another process
    was faster, SystemHeldError, and ConfigError, also if the quarantine leaves too few systems.
    """
    if free.previous is not None and free.previous.status == "running":
        refuse_unfinished(free.previous)
    out = quarantined(job)
    check_engines(job)
    run_id, names = new_run_id(), _named_systems(job)
    held = systems.hold(runtime_root(), names, systems.Service(run_id, job.name, job.model_dir))
    with _released_on_error(held):
        holding = free.begin(
            run_id,
            job.name,
            runtime=str(runtime_directory(run_id)),
            systems=names,
            quarantined=out,
            job_config=recorded(job),
            secrets=secrets_of(job),
            **({PROCESSES_ON: this_machine().to_json()} if _runs_here(job) else {}),
        )
        own_runtime(holding.run)
    if free.previous is not None:
        with contextlib.suppress(OSError):  # the directory has become read-only
            free.previous.forget_secrets()  # only the latest run can be resumed
    if flow_run_id is not None:
        holding.run.belongs_to(flow_run_id)
    return replace(holding, systems=held)


def refuse_unfinished(run: Run) -> NoReturn:
    """Raise UnfinishedRunError for a run that has not ended, ConfigError for a copy, which can never be resumed."""
    check_own(run)
    raise UnfinishedRunError(run.run_id, str(run.model_dir))


def resume_run(free: Vacancy) -> Holding:
    """Resume the previous run; raises RunHeldError, SystemHeldError, ConfigError."""
    run = free.previous
    assert run is not None
    check_journals(run)
    record = run.record()
    service = systems.Service(run.run_id, str(record.get("job", "")), str(run.model_dir))
    held = systems.hold(_runtime_root_of(run), record.get("systems", ()), service)
    with _released_on_error(held):
        return replace(free.resume(), systems=held)


def check_systems(job: JobConfig, previous: Run | None) -> None:
    """Raise SystemHeldError if a new run could not hold its systems; those of `previous` will be free by then."""
    systems.check(runtime_root(), _named_systems(job), previous.run_id if previous is not None else None)


def check_systems_of(run: Run) -> None:
    """Raise SystemHeldError if a run could not be resumed."""
    systems.check(_runtime_root_of(run), run.record().get("systems", ()), run.run_id)


def _named_systems(job: JobConfig) -> list[str]:
    """Return the systems that the job names explicitly; the default system is not held."""
    parts = [job.infrastructure_of(index) for index in range(len(job.phases))]
    named = [part for part in parts if part.ranks_are_here and "systems" in part.model_fields_set]
    return sorted({system.name for part in named for system in part.systems})


def _runtime_root_of(run: Run) -> Path:
    """Return the directory of a run's locks: that of its run-time directory, whatever the current default."""
    return recorded_runtime(run).parent


@contextmanager
def _released_on_error(held: systems.HeldSystems) -> Iterator[None]:
    try:
        yield
    except BaseException:
        held.release()
        raise


def job_of(run: Run) -> JobConfig:
    """Return the job that a run began with; later changes of the job file apply to the next run.

    Its model directory is the run's current one. Raises ConfigError if the recorded job is invalid.
    """
    return _recorded_job(run).job


def job_to_end(run: Run) -> JobConfig:
    """Return a run's job with only the fields needed to end the run; raises ConfigError if it cannot be read."""
    return _recorded_job(run, only_to_end=True).job


def warn_of_unread(run: Run) -> None:
    """Publish a warning for each field of a run's job that this version ignores or changes; raises ConfigError."""
    for warning in _recorded_job(run).warnings:
        tell(Notice(text=f"warning: {run.job_path}: {warning}"))


def check_journals(run: Run) -> None:
    """Raise NewerFormatError if this version cannot read a run's journals."""
    for directory in phases_of(run):
        with contextlib.suppress(OSError):  # reported when the phase is resumed
            read_lines(directory / JOURNAL)


def check_places_of(run: Run) -> None:
    """Raise ConfigError if a directory that a resumed run needs is missing."""
    phases = run.record().get("phases", [])
    completed = {each["index"] for each in phases if _is_complete(run.model_dir / each["directory"])}
    saved = {each["index"] for each in phases if _has_saved(run.model_dir / each["directory"])}
    job = job_of(run)
    check_kept(job, {index: index in saved for index in range(len(job.phases)) if index not in completed})


def _is_complete(directory: Path) -> bool:
    return any(isinstance(line, EndLine) and line.status == "completed" for line in _read(directory))


def _has_saved(directory: Path) -> bool:
    return any(isinstance(line, CheckpointLine) for line in _read(directory))


def _read(directory: Path) -> list[Line]:
    """Return the readable lines of a phase's journal; errors are reported when the phase is resumed."""
    with contextlib.suppress(OSError):
        return read_lines(directory / JOURNAL)
    return []


def _recorded_job(run: Run, *, only_to_end: bool = False) -> RecordedJob:
    record = run.record()
    check_run(record, str(run.root))
    content = run.job()
    try:
        content = with_secrets(content, run.secrets())
    except (LookupError, TypeError) as exc:
        if not content or not only_to_end:
            raise ConfigError("is damaged; the run cannot be resumed", file=str(run.job_path)) from exc
    try:
        job, warnings = read_recorded(content, only_to_end=only_to_end)
    except ConfigError as exc:
        remedy = how_to_get(record.get("version")) + (
            "" if only_to_end else ", or end the run: prefect-ft cancel"
        )
        message = f"is damaged, or written by another version: {exc}. {remedy}"
        raise ConfigError(message, file=str(run.job_path)) from exc
    return RecordedJob(job.model_copy(update={"model_dir": str(run.model_dir.absolute())}), warnings)


@contextmanager
def held(holding: Holding, job: JobConfig) -> Iterator[tuple[Holding, StopRequest]]:
    """Hold a run while entered: renew its lease, and ask it to stop on Ctrl-C, SIGTERM or `cancel`."""
    with (
        StopRequest(holding.run.want_cancelled, leaves_on_sigterm=is_kept_alive()) as stop,
        holding.kept(on_lost=stop.abandon, on_cancel=stop.ask, each_time=stop.record),
    ):
        for unit in _shared_fates(job):
            tell(Notice(text=f"workers run inside {unit}: stopping it as a whole will kill them"))
        yield holding, stop


def _runs_here(job: JobConfig) -> bool:
    """Return whether ranks of any phase are processes of this machine."""
    return any(job.infrastructure_of(index).ranks_are_here for index in range(len(job.phases)))


def _shared_fates(job: JobConfig) -> list[str]:
    """Return the units (a service, a container) whose end would kill workers together with this process."""
    kinds = dict.fromkeys(kind_of(job.infrastructure_of(index)) for index in range(len(job.phases)))
    return [unit for kind in kinds if (unit := kind.shared_fate()) is not None]


def is_kept_alive() -> bool:
    """Return whether a process manager restarts this process until its run ends: then SIGTERM does not cancel it."""
    return os.environ.get(ON_SIGTERM) == LEAVE


def conclude(holding: Holding, status: str) -> None:
    """Record that a run has ended; end and remove what its workers left behind.

    Raises LeaseLostError if another orchestrator has taken the run.
    """
    holding.lease.check()
    run = holding.run
    with contextlib.suppress(OSError):  # a full disk; the phases' journals record the same
        run.describe(status=status)
        run.forget_cancel()
        if status == "completed":
            run.forget_secrets()
    try:
        clear_directory(removable_runtime(run))
    except ConfigError as error:
        tell(Notice(text=f"the run-time directory is not removed: {error}"))


def run_to_its_end(holding: Holding, stop: StopRequest, phases: Callable[[], PhaseSummary]) -> PhaseSummary:
    """Run a run's phases, and record the end of the run: the status of the last phase, or the error.

    An error that leaves the run to another orchestrator or another try does not end it.
    """
    try:
        last = phases()
    except (LeaseLostError, ComebackError, NewerFormatError, HandedOverError):
        raise
    except (Exception, KeyboardInterrupt, CancelledError) as exc:
        stop.settle()
        is_failure = isinstance(exc, Exception) and not isinstance(exc, NotStartedError)
        conclude(holding, "failed" if is_failure else "cancelled")
        raise
    stop.settle()
    conclude(holding, last.status)
    return last


def end_unwatched(holding: Holding, reason: str, *, with_checkpoint: bool = False) -> None:
    """End an unwatched run and all its processes; it is cancelled, unless it was complete.

    `with_checkpoint`: ask its ranks to save a checkpoint first.
    """
    job = job_to_end(holding.run)
    with held(holding, job) as (_, stop):
        stop.ask(reason, with_checkpoint)
        for index in range(len(job.phases)):
            if unfinished_directory(holding.run, index) is not None:
                placed = placed_on(job, index, holding.run, None)
                PhaseExecution(placed, index, holding, stop).execute(_stop_attempt, by_hand=True)
        ends = [summary_of(holding.run, index) for index in range(len(job.phases))]
        is_complete = all(end is not None and end.status == "completed" for end in ends)
        stop.settle()
        conclude(holding, "completed" if is_complete else "cancelled")


def _stop_attempt(supervisor: Supervisor) -> None:
    with contextlib.suppress(AttemptFailedError):
        supervisor.attempt()
