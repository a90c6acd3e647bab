"""`prefect-ft run`: train-flow in this process, with a live view; the one command that loads Prefect."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from prefect_ft import preflight
from prefect_ft.cli import CANCELLED, COMPLETED, FAILED
from prefect_ft.cli.show import print_report
from prefect_ft.cli.view import watching
from prefect_ft.config import JobConfig, apply_overrides, load_job, read_document, warnings
from prefect_ft.config.yaml_text import dotted
from prefect_ft.errors import ConfigError, PrefectFTError
from prefect_ft.observe import Fact, PhaseStarted, observed_by


def run(path: str, overrides: Sequence[str], model_dir: str | None, *, as_json: bool) -> int:
    """Run a job to its end and give the exit code; raises ConfigError before anything starts."""
    job = load_job(path, overrides, model_dir)
    _check(job, path, overrides)
    for warning in warnings(job):
        print(f"warning: {path}: {warning}", file=sys.stderr)  # noqa: T201
    _prepare_prefect()
    started: list[PhaseStarted] = []

    def note(fact: Fact) -> None:
        if isinstance(fact, PhaseStarted):
            started.append(fact)

    print("starting Prefect…", file=sys.stderr)  # noqa: T201
    with observed_by(note), watching(job):
        state = _flow(job)
    _show_result(started, as_json=as_json)
    if state.is_completed():
        return COMPLETED
    if not state.is_cancelled():
        print(f"error: {_cause(state)}", file=sys.stderr)  # noqa: T201
    return CANCELLED if state.is_cancelled() else FAILED


def _flow(job: JobConfig) -> Any:
    from prefect_ft.flows import train_flow  # noqa: PLC0415  (after Prefect's console has been quietened)

    try:
        return train_flow(job, return_state=True)
    except (RuntimeError, OSError) as exc:
        raise PrefectFTError(f"Prefect's API cannot be used: {exc}") from exc


def _check(job: JobConfig, path: str, overrides: Sequence[str]) -> None:
    """Check what this machine has for the job, and say where in the file the remedy belongs."""
    try:
        preflight.check(job)
    except ConfigError as error:
        document = apply_overrides(read_document(path), overrides)
        field = next((place for place in document.places if dotted(place) == error.field), None)
        raise document.error(field, error.message) if field else error from None


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
    directories = [fact.directory for fact in started]
    if as_json:
        summaries = [json.loads((directory / "summary.json").read_text()) for directory in directories]
        print(json.dumps({"run": started[0].run_id, "phases": summaries}, indent=2))  # noqa: T201
    else:
        print_report(directories)


def _cause(state: Any) -> str:
    error = state.result(raise_on_failure=False)
    if isinstance(error, PrefectFTError):
        return str(error)
    return f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(state.message)
