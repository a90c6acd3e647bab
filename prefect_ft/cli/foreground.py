"""train-flow in this process, with a live view: the work of `run` and `resume`."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prefect_ft import plaintext
from prefect_ft.backends.kind import SUCCESSOR_OF
from prefect_ft.cli.exits import CANCELLED, COMPLETED, FAILED, INVALID, REFUSALS
from prefect_ft.cli.prefect_view import shown_in_prefect
from prefect_ft.cli.saved_block import saved_block
from prefect_ft.cli.show import print_report
from prefect_ft.cli.view import watching
from prefect_ft.config import Document, JobConfig, job_document, job_in, warnings
from prefect_ft.errors import ConfigError, NotStartedError, PrefectFTError
from prefect_ft.observe import Fact, PhaseStarted, Replay, observed_by
from prefect_ft.orchestrate import preflight
from prefect_ft.orchestrate.entering import Unfinished, enter
from prefect_ft.orchestrate.executing import execute
from prefect_ft.orchestrate.live import Begun, Live
from prefect_ft.orchestrate.metrics import serving
from prefect_ft.orchestrate.run import (
    LEAVE,
    ON_SIGTERM,
    check_journals,
    check_places_of,
    check_systems,
    check_systems_of,
    held,
    job_of,
    refuse_unfinished,
)
from prefect_ft.run import find_run, latest_run, vacancy
from prefect_ft.run.ownership import take_as_moved
from prefect_ft.supervisor import HandedOverError

_AS_IT_WAS = (
    "goes on with the job as it was when the run began; where the job file has changed since, `prefect-ft run` "
    "begins a new run with it, from the same checkpoints"
)


def run(
    path: str,
    overrides: Sequence[str],
    model_dir: str | None,
    *,
    command: str | None,
    unfinished: Unfinished,
    is_restartable: bool,
    from_scratch: bool,
    as_json: bool,
) -> int:
    """Run a job to its end and return the exit code; raises ConfigError before anything starts.

    `from_scratch`: begin without the checkpoints that are there.

    `is_restartable`: a process manager restarts this for as long as the code is not 0.
    """
    _prepare_prefect()
    document = job_document(path, overrides, model_dir, command=command, blocks=saved_block)
    job = job_in(document, path)
    if from_scratch and unfinished == "resume" and not is_restartable:
        remedy = "use --fresh instead"
        raise ConfigError(
            f"begins a new run and cannot be combined with --resume; {remedy}", file="--from-scratch"
        )
    if from_scratch:
        job = job.from_scratch()
    previous = latest_run(Path(job.model_dir))
    before = os.environ.get(SUCCESSOR_OF)
    if before and (previous is None or previous.run_id != before or previous.status != "running"):
        print(
            plaintext.as_lines(f"run {before} has ended; no run is begun here ({SUCCESSOR_OF})"),
            file=sys.stderr,
        )
        return COMPLETED
    if before:
        unfinished = "resume"
    if previous is not None and previous.status != "completed" and unfinished == "resume":
        check_places_of(previous)  # before anything is made in their place
    with _located(document):
        preflight.check(job)
        _check_startable(job, unfinished)
    for warning in (*document.warnings, *warnings(job)):
        print(plaintext.as_line(f"warning: {path}: {warning}"), file=sys.stderr)
    if not is_restartable:
        return _watch(job, unfinished, as_json=as_json)
    with _leaving_on_sigterm():
        return _code_for_a_keeper(_watch(job, unfinished, as_json=as_json), job)


@contextmanager
def _leaving_on_sigterm() -> Iterator[None]:
    """Have SIGTERM leave the runs of this process as they are, as the variable of a user's does."""
    before = os.environ.get(ON_SIGTERM)
    os.environ[ON_SIGTERM] = LEAVE
    try:
        yield
    finally:
        os.environ.pop(ON_SIGTERM)
        if before is not None:
            os.environ[ON_SIGTERM] = before


def _code_for_a_keeper(code: int, job: JobConfig) -> int:
    """Return 0 once the run has ended in any way: there is nothing to restart."""
    latest = latest_run(Path(job.model_dir))
    has_ended = latest is not None and latest.status != "running"
    return COMPLETED if has_ended and code in (FAILED, CANCELLED) else code


def resume(name: str, *, is_moved: bool, as_json: bool) -> int:
    """Go on with a run whose orchestrator died, or that failed, until it ends; return the exit code.

    `is_moved`: a person says that its directory was moved, where it could be a copy.
    """
    known = find_run(name)
    if known.status == "completed":
        raise ConfigError(f"run {known.run_id} has completed: there is nothing to resume", file=name)
    latest = latest_run(known.model_dir)
    if latest is not None and latest.run_id != known.run_id:
        raise ConfigError(f"{known.model_dir} has a later run, {latest.run_id}", file=name)
    _prepare_prefect()
    job = job_of(known)
    check_journals(known)
    vacancy(known.model_dir, job.lease_s)
    if is_moved:
        take_as_moved(known)
    check_systems_of(known)
    if known.status != "running":
        print(plaintext.as_lines(_AS_IT_WAS), file=sys.stderr)
    return _watch(job, "resume", as_json=as_json)


def _check_startable(job: JobConfig, unfinished: Unfinished) -> None:
    """Check, before anything is loaded, whether another run holds what this one needs."""
    previous = vacancy(Path(job.model_dir), job.lease_s).previous
    if previous is not None and previous.status == "running" and unfinished == "refuse":
        refuse_unfinished(previous)
    if previous is not None and previous.status != "completed" and unfinished == "resume":
        check_systems_of(previous)
    else:
        preflight.quarantined(job)
        preflight.check_engines(job)
        check_systems(job, previous if unfinished == "fresh" else None)


def _watch(job: JobConfig, unfinished: Unfinished, *, as_json: bool) -> int:
    """Execute a run in this process, and show what happens: here, and in Prefect as soon as that can be used."""
    started: list[PhaseStarted] = []

    def note(fact: Fact) -> None:
        if isinstance(fact, PhaseStarted):
            started.append(fact)

    error: Exception | None = None
    with observed_by(note), watching(job):
        try:
            code, reason = _execute(job, unfinished)
        except HandedOverError as exc:
            print(plaintext.as_lines(f"handed over to the next allocation: {exc}"), file=sys.stderr)
            return COMPLETED
        except NotStartedError as exc:
            print(plaintext.as_lines(f"cancelled: {exc}"), file=sys.stderr)
            return CANCELLED
        except Exception as exc:
            error = exc
    _show_result(started, as_json=as_json)
    if error is not None:
        print(plaintext.as_lines(f"error: {_cause(error)}"), file=sys.stderr)
        return INVALID if isinstance(error, REFUSALS) and not started else FAILED
    if code == FAILED:
        print(plaintext.as_lines(f"error: {reason}"), file=sys.stderr)
    return code


def _execute(job: JobConfig, unfinished: Unfinished) -> tuple[int, str]:
    """Execute a run to its end; return the exit code and why the run ended."""
    facts, live = Replay(), Live()
    with observed_by(facts.take), shown_in_prefect() as view:
        entered = enter(job, unfinished)
        run = entered.holding.run
        with (
            held(entered.holding, entered.job) as (_, stop),
            serving(entered.job.metrics, run),
        ):
            view.begin(entered.job, Begun(run, live, stop, facts, threading.Event()))
            last = execute(entered, stop, live)
    return _CODES.get(last.status, FAILED), f"phase {last.phase}: {last.reason}"


_CODES = {"completed": COMPLETED, "cancelled": CANCELLED}


@contextmanager
def _located(document: Document) -> Iterator[None]:
    """Have what this machine lacks for the job say where in its file the remedy belongs."""
    try:
        yield
    except ConfigError as error:
        raise document.located(error) from None


_PREFECT_SETTINGS = {
    # The view says what happens; Prefect's own lines go to its API and not across the terminal as well.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # The embedded server makes its database at its first start; on a busy machine 20 s are not enough.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
}


def _prepare_prefect() -> None:
    """Set, before Prefect is loaded, what suits a run in the foreground; the user's own settings win."""
    for name, value in _PREFECT_SETTINGS.items():
        os.environ.setdefault(name, value)


def _show_result(started: Sequence[PhaseStarted], *, as_json: bool) -> None:
    if not started:
        return
    directories = list(dict.fromkeys(fact.directory for fact in started))  # a phase goes through allocations
    if as_json:
        summaries = [json.loads((directory / "summary.json").read_text()) for directory in directories]
        print(plaintext.as_json({"run": started[0].run_id, "phases": summaries}, indent=2))
    else:
        print_report(directories)


def _cause(error: Exception) -> str:
    return str(error) if isinstance(error, PrefectFTError) else f"{type(error).__name__}: {error}"
