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
from prefect_ft.errors import ComebackError, ConfigError, LeaseLostError, NewerFormatError, UnfinishedRunError
from prefect_ft.formats import check_run, how_to_get
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import CheckpointLine, EndLine, Line
from prefect_ft.journal.summary import PhaseSummary
from prefect_ft.observe import Notice, tell
from prefect_ft.orchestrate.phase import PhaseExecution, summary_of, unfinished_directory
from prefect_ft.orchestrate.preflight import check_engines, check_kept, quarantined
from prefect_ft.run import JOURNAL, Holding, Run, Vacancy, new_run_id, runtime_directory, systems
from prefect_ft.run.identity import PROCESSES_ON
from prefect_ft.run.lookup import phases_of
from prefect_ft.run.machine import this_machine
from prefect_ft.run.ownership import check_own, own_runtime, recorded_runtime, removable_runtime
from prefect_ft.run.runtime import runtime_root
from prefect_ft.supervisor import AttemptFailedError, StopRequest, Supervisor

ON_SIGTERM, LEAVE = "PREFECT_FT_ON_SIGTERM", "leave"
"""The variable by which SIGTERM leaves a run as it is, for who comes next; it cancels it otherwise."""


def begin_run(job: JobConfig, free: Vacancy, *, flow_run_id: str | None = None) -> Holding:
    """Begin a run of a job with absolute paths.

    Raises UnfinishedRunError for a model directory whose run has not ended, RunHeldError if somebody was
    faster, SystemHeldError, ConfigError, also where the quarantine leaves too few systems.
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
        with contextlib.suppress(OSError):  # a place that has become read-only
            free.previous.forget_secrets()  # the latest run alone can be resumed
    if flow_run_id is not None:
        holding.run.belongs_to(flow_run_id)
    return replace(holding, systems=held)


def refuse_unfinished(run: Run) -> NoReturn:
    """Raise UnfinishedRunError for a run that has not ended, ConfigError for a copy of one: that is never resumed."""
    check_own(run)
    raise UnfinishedRunError(run.run_id, str(run.model_dir))


def go_on(free: Vacancy) -> Holding:
    """Take up the previous run, to start workers again; raises RunHeldError, SystemHeldError, ConfigError."""
    run = free.previous
    assert run is not None
    check_journals(run)
    told = run.told()
    service = systems.Service(run.run_id, str(told.get("job", "")), str(run.model_dir))
    held = systems.hold(_runtime_root_of(run), told.get("systems", ()), service)
    with _released_on_error(held):
        return replace(free.go_on(), systems=held)


def check_systems(job: JobConfig, previous: Run | None) -> None:
    """Raise SystemHeldError if a new run of a job could not begin; what `previous` has will be free by then."""
    systems.check(runtime_root(), _named_systems(job), previous.run_id if previous is not None else None)


def check_systems_of(run: Run) -> None:
    """Raise SystemHeldError if a run could not be resumed."""
    systems.check(_runtime_root_of(run), run.told().get("systems", ()), run.run_id)


def _named_systems(job: JobConfig) -> list[str]:
    """Return the systems that the job's own words name; the default that stands for none is anybody's."""
    parts = [job.infrastructure_of(index) for index in range(len(job.phases))]
    named = [part for part in parts if part.ranks_are_here and "systems" in part.model_fields_set]
    return sorted({system.name for part in named for system in part.systems})


def _runtime_root_of(run: Run) -> Path:
    """Return where a run's locks are: beside its run-time directory, wherever new ones would be made now."""
    return recorded_runtime(run).parent


@contextmanager
def _released_on_error(held: systems.HeldSystems) -> Iterator[None]:
    try:
        yield
    except BaseException:
        held.release()
        raise


def job_of(run: Run) -> JobConfig:
    """Return the job that a run began with: what is changed in the job file since is for the next run.

    Its model directory is where the run lies now. Raises ConfigError for what is no job any more.
    """
    return _recorded_job(run).job


def job_to_end(run: Run) -> JobConfig:
    """Return of a run's job what it takes to end the run; raises ConfigError where that cannot be read."""
    return _recorded_job(run, only_to_end=True).job


def tell_unread(run: Run) -> None:
    """Tell of what this version passes over in a run's job, or takes for something else; raises ConfigError."""
    for warning in _recorded_job(run).warnings:
        tell(Notice(text=f"warning: {run.job_path}: {warning}"))


def check_journals(run: Run) -> None:
    """Raise NewerFormatError if this version cannot read what has happened in a run."""
    for directory in phases_of(run):
        with contextlib.suppress(OSError):  # what this means for the run is said where it is taken up
            read_lines(directory / JOURNAL)


def check_places_of(run: Run) -> None:
    """Raise ConfigError where a directory is gone that a run would go on in, or whose checkpoints it would miss."""
    told = run.told().get("phases", [])
    completed = {each["index"] for each in told if _is_complete(run.model_dir / each["directory"])}
    saved = {each["index"] for each in told if _has_saved(run.model_dir / each["directory"])}
    job = job_of(run)
    check_kept(job, {index: index in saved for index in range(len(job.phases)) if index not in completed})


def _is_complete(directory: Path) -> bool:
    return any(isinstance(line, EndLine) and line.status == "completed" for line in _read(directory))


def _has_saved(directory: Path) -> bool:
    return any(isinstance(line, CheckpointLine) for line in _read(directory))


def _read(directory: Path) -> list[Line]:
    """Return what can be read of a phase's journal: what else there is, is said where the phase is taken up."""
    with contextlib.suppress(OSError):
        return read_lines(directory / JOURNAL)
    return []


def _recorded_job(run: Run, *, only_to_end: bool = False) -> RecordedJob:
    told = run.told()
    check_run(told, str(run.root))
    content = run.job()
    try:
        content = with_secrets(content, run.secrets())
    except (LookupError, TypeError) as exc:
        if not content or not only_to_end:
            raise ConfigError("is damaged: the run cannot be resumed", file=str(run.job_path)) from exc
    try:
        job, warnings = read_recorded(content, only_to_end=only_to_end)
    except ConfigError as exc:
        remedy = how_to_get(told.get("version")) + (
            "" if only_to_end else ", or end the run: prefect-ft cancel"
        )
        message = f"is damaged, or of another version: {exc}. {remedy}"
        raise ConfigError(message, file=str(run.job_path)) from exc
    return RecordedJob(job.model_copy(update={"model_dir": str(run.model_dir.absolute())}), warnings)


@contextmanager
def held(holding: Holding, job: JobConfig) -> Iterator[tuple[Holding, StopRequest]]:
    """Keep a run of a job while entered: its lease is renewed; Ctrl-C, SIGTERM or `cancel` ask it to stop."""
    with (
        StopRequest(holding.run.want_cancelled, leaves_on_sigterm=is_kept_alive()) as stop,
        holding.kept(on_lost=stop.abandon, on_cancel=stop.ask, each_time=stop.record),
    ):
        for whose in _shared_fates(job):
            tell(Notice(text=f"workers run inside {whose}: if it ends as a whole, they end with it"))
        yield holding, stop


def _runs_here(job: JobConfig) -> bool:
    """Whether ranks of any phase are processes of this machine."""
    return any(job.infrastructure_of(index).ranks_are_here for index in range(len(job.phases)))


def _shared_fates(job: JobConfig) -> list[str]:
    """Return whose end would end workers of a job together with this process."""
    kinds = dict.fromkeys(kind_of(job.infrastructure_of(index)) for index in range(len(job.phases)))
    return [whose for kind in kinds if (whose := kind.shared_fate()) is not None]


def is_kept_alive() -> bool:
    """Whether something starts this process again as long as its run has not ended: then SIGTERM does not end that."""
    return os.environ.get(ON_SIGTERM) == LEAVE


def conclude(holding: Holding, status: str) -> None:
    """Take down that a run has ended; what it had for its workers is ended and removed.

    Raises LeaseLostError where that is another orchestrator's to do.
    """
    holding.lease.check()
    run = holding.run
    with contextlib.suppress(OSError):  # a full disk; the phases' journals say the same
        run.describe(status=status)
        run.forget_cancel()
        if status == "completed":
            run.forget_secrets()
    try:
        clear_directory(removable_runtime(run))
    except ConfigError as error:
        tell(Notice(text=f"nothing is removed with the run: {error}"))


def run_to_its_end(holding: Holding, stop: StopRequest, phases: Callable[[], PhaseSummary]) -> PhaseSummary:
    """Run a run's phases; as the last one of them ended, or by an error, the run has ended: take that down.

    But for what leaves it to somebody else, or to another try: then nothing has ended.
    """
    try:
        last = phases()
    except (LeaseLostError, ComebackError, NewerFormatError):
        raise
    except (Exception, KeyboardInterrupt, CancelledError) as exc:
        stop.settle()
        conclude(holding, "failed" if isinstance(exc, Exception) else "cancelled")
        raise
    stop.settle()
    conclude(holding, last.status)
    return last


def end_unwatched(holding: Holding, reason: str, *, with_checkpoint: bool = False) -> None:
    """End a run that nobody watches, with all that still runs in it: it is cancelled, if it was not complete.

    `with_checkpoint`: its ranks are asked to save first.
    """
    job = job_to_end(holding.run)
    with held(holding, job) as (_, stop):
        stop.ask(reason, with_checkpoint)
        for index in range(len(job.phases)):
            if unfinished_directory(holding.run, index) is not None:
                PhaseExecution(job, index, holding, stop).execute(_stop_attempt, by_hand=True)
        ends = [summary_of(holding.run, index) for index in range(len(job.phases))]
        is_complete = all(end is not None and end.status == "completed" for end in ends)
        stop.settle()
        conclude(holding, "completed" if is_complete else "cancelled")


def _stop_attempt(supervisor: Supervisor) -> None:
    with contextlib.suppress(AttemptFailedError):
        supervisor.attempt()
