"""`cancel`: ends a run, through its orchestrator or, if it has none, from here."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from prefect_ft import plaintext
from prefect_ft.cli.arguments import add_json, add_run
from prefect_ft.cli.exits import COMPLETED, FAILED
from prefect_ft.errors import ConfigError, PrefectFTError, RunElsewhereError, RunHeldError
from prefect_ft.run import RUNS, Run, find_run, vacancy
from prefect_ft.run.lease import Claims
from prefect_ft.run.lookup import record_of

if TYPE_CHECKING:
    from prefect_ft.config import JobConfig

ASK_S = 0.2
"""Poll interval for a run that its orchestrator is ending."""

SOURCE = "prefect-ft cancel"
"""The source of the cancellation in journals and in the orchestrator's messages."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run, and whether its ranks save a checkpoint first."""
    add_json(parser)
    parser.add_argument("--checkpoint", action="store_true", help="have its ranks save a checkpoint first")
    add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """End the run."""
    return _cancel(arguments.run, with_checkpoint=arguments.checkpoint, as_json=arguments.json)


def _cancel(name: str, *, with_checkpoint: bool, as_json: bool) -> int:
    """End a run, through its orchestrator or, if it has none, from here; return 0 if it is cancelled.

    `with_checkpoint`: ask its ranks to save a checkpoint first.
    """
    from prefect_ft.orchestrate.run import check_journals, job_to_end  # loads pydantic

    run = find_run(name)
    if run.status != "running":
        raise ConfigError(f"run {run.run_id} has ended already: {run.status}", file=name)
    job = job_to_end(run)
    check_journals(run)
    _check_last(run, name)
    if with_checkpoint:
        _check_can_ask(job, run, name)
    try:
        run.want_cancelled(SOURCE, with_checkpoint)
    except OSError as exc:
        raise ConfigError(f"{run.root} cannot be written: {exc.strerror}", file=name) from exc
    try:
        status = _await_end(run, name, job.lease_s, with_checkpoint=with_checkpoint)
    except RunElsewhereError:
        with suppress(OSError):
            run.forget_cancel()  # the cancel is refused; that machine must not see it later
        raise
    if status != "cancelled":
        with suppress(OSError):
            run.forget_cancel()  # too late; a later resume must not see it
    print(
        plaintext.as_json({"run": run.run_id, "status": status})
        if as_json
        else plaintext.as_line(f"run {run.run_id}: {status}")
    )
    return COMPLETED if status == "cancelled" else FAILED


def _check_can_ask(job: JobConfig, run: Run, name: str) -> None:
    """Raise ConfigError if the ranks of the running phase cannot be asked for a checkpoint."""
    phases = run.record().get("phases", [])
    phase = job.phases[phases[-1]["index"] if phases else 0]
    if phase.checkpoints is None or phase.checkpoints.on_demand is None:
        message = f"phase {phase.name!r} does not set checkpoints.on_demand; cancel without --checkpoint"
        raise ConfigError(message, file=name)


def _await_end(run: Run, name: str, lease_s: float, *, with_checkpoint: bool) -> str:
    """Wait until a run has ended, and end it if it has no orchestrator; return its status."""
    is_reported = False
    while (status := str(record_of(run).get("status"))) == "running":
        _check_last(run, name)
        try:
            _end_if_free(run, lease_s, with_checkpoint=with_checkpoint)
        except RunHeldError as held:
            if not is_reported:
                print(
                    plaintext.as_line(f"asked {held.holder}, which watches the run, to end it"),
                    file=sys.stderr,
                )
            is_reported = True
            time.sleep(ASK_S)
        except OSError as exc:
            raise PrefectFTError(f"run {run.run_id} cannot be ended: {exc}") from exc
    return status


def _end_if_free(run: Run, lease_s: float, *, with_checkpoint: bool) -> None:
    """End a run that has no orchestrator; raises RunHeldError."""
    from prefect_ft.orchestrate.run import end_unwatched  # loads pydantic

    free = vacancy(run.model_dir, lease_s)
    if free.previous is not None and free.previous.run_id == run.run_id and run.status == "running":
        end_unwatched(free.resume(), SOURCE, with_checkpoint=with_checkpoint)


def _check_last(run: Run, name: str) -> None:
    """Raise ConfigError for a run that can never be held again."""
    try:
        claim = Claims(run.model_dir / RUNS).highest()
    except OSError as exc:
        raise ConfigError(f"cannot read its lease: {exc.strerror}", file=name) from exc
    if claim is None:
        raise ConfigError(f"run {run.run_id} was never held: there is no process to ask", file=name)
    if claim.run_id != run.run_id and run.status == "running":
        raise ConfigError(f"run {claim.run_id} replaced it; cancel that one", file=name)
