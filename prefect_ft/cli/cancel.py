"""`cancel`: ends a run, through whoever watches it or from here."""

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
from prefect_ft.run.lookup import told_by

if TYPE_CHECKING:
    from prefect_ft.config import JobConfig

ASK_S = 0.2
"""How often a run that somebody else is ending is looked at."""

SOURCE = "prefect-ft cancel"
"""Who wanted the end, in journals and in what the watcher says."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run and what its ranks do first."""
    add_json(parser)
    parser.add_argument("--checkpoint", action="store_true", help="have its ranks save a checkpoint first")
    add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """End the run."""
    return _cancel(arguments.run, with_checkpoint=arguments.checkpoint, as_json=arguments.json)


def _cancel(name: str, *, with_checkpoint: bool, as_json: bool) -> int:
    """End a run, through whoever watches it or, where nobody does, from here; return 0 if it is cancelled.

    `with_checkpoint`: its ranks are asked to save first.
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
            run.forget_cancel()  # it is refused, and not to be heard of there later
        raise
    if status != "cancelled":
        with suppress(OSError):
            run.forget_cancel()  # it came too late, and is for no later life of the run
    print(
        plaintext.as_json({"run": run.run_id, "status": status})
        if as_json
        else plaintext.as_line(f"run {run.run_id}: {status}")
    )
    return COMPLETED if status == "cancelled" else FAILED


def _check_can_ask(job: JobConfig, run: Run, name: str) -> None:
    """Raise ConfigError where the ranks of the phase that is running cannot be asked for a checkpoint."""
    phases = run.told().get("phases", [])
    phase = job.phases[phases[-1]["index"] if phases else 0]
    if phase.checkpoints is None or phase.checkpoints.on_demand is None:
        message = f"phase {phase.name!r} says nothing of checkpoints.on_demand; cancel without --checkpoint"
        raise ConfigError(message, file=name)


def _await_end(run: Run, name: str, lease_s: float, *, with_checkpoint: bool) -> str:
    """Wait until a run has ended, and end it where nobody watches it; return how it ended."""
    is_told = False
    while (status := str(told_by(run).get("status"))) == "running":
        _check_last(run, name)
        try:
            _end_if_free(run, lease_s, with_checkpoint=with_checkpoint)
        except RunHeldError as held:
            if not is_told:
                print(plaintext.as_line(f"asked {held.holder}, which watches the run"), file=sys.stderr)
            is_told = True
            time.sleep(ASK_S)
        except OSError as exc:
            raise PrefectFTError(f"run {run.run_id} cannot be ended: {exc}") from exc
    return status


def _end_if_free(run: Run, lease_s: float, *, with_checkpoint: bool) -> None:
    """End a run that nobody watches; raises RunHeldError."""
    from prefect_ft.orchestrate.run import end_unwatched  # loads pydantic

    free = vacancy(run.model_dir, lease_s)
    if free.previous is not None and free.previous.run_id == run.run_id and run.status == "running":
        end_unwatched(free.go_on(), SOURCE, with_checkpoint=with_checkpoint)


def _check_last(run: Run, name: str) -> None:
    """Raise ConfigError for a run that can never be taken again."""
    try:
        claim = Claims(run.model_dir / RUNS).highest()
    except OSError as exc:
        raise ConfigError(f"its lease cannot be read: {exc.strerror}", file=name) from exc
    if claim is None:
        raise ConfigError(f"run {run.run_id} was never held: there is nobody to ask", file=name)
    if claim.run_id != run.run_id and run.status == "running":
        raise ConfigError(f"run {claim.run_id} has followed it; cancel that one", file=name)
