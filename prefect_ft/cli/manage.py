"""`list`, `cancel` and `clean`: the runs of this machine, who watches them, and what they left behind."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from prefect_ft import plaintext
from prefect_ft.backends.clearing import clear_directory
from prefect_ft.cli import COMPLETED, FAILED
from prefect_ft.cli.show import console_for
from prefect_ft.config import JobConfig
from prefect_ft.console import plain
from prefect_ft.errors import ConfigError, PrefectFTError, RunElsewhereError, RunHeldError
from prefect_ft.report.terminal import STATUS_STYLES
from prefect_ft.run import RUNS, Run, find_run, holder_of, known_runs, runs_in, vacancy
from prefect_ft.run.identity import registry
from prefect_ft.run.lease import Claims
from prefect_ft.run.lookup import told_by
from prefect_ft.run.ownership import recorded_runtime
from prefect_ft.run.runtime import runtime_root
from prefect_ft.runs import check_journals, end_unwatched, job_to_end

ASK_S = 0.2
"""How often a run that somebody else is ending is looked at."""

SOURCE = "prefect-ft cancel"
"""Who wanted the end, in journals and in what the watcher says."""


# -- list -------------------------------------------------------------------------------------------


def list_runs(model_dir: str | None, *, as_json: bool) -> int:
    """Print the runs that were begun here, or those of a model directory, the oldest first."""
    runs = known_runs() if model_dir is None else runs_in(_existing(model_dir))
    rows = [_row(run) for run in runs]
    if as_json:
        print(plaintext.as_json(rows, indent=2))
        return COMPLETED
    console = console_for()
    if not rows:
        console.print(
            plain("no runs are known here" if model_dir is None else f"no run has begun in {model_dir}")
        )
        return COMPLETED
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("run", "job", "status", "phase", "began", "watched by", "model directory"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(
            plain(row["run"]),
            plain(row["job"]),
            Text(plaintext.as_line(row["status"]), style=STATUS_STYLES.get(row["status"], "yellow")),
            plain(row["phase"] or ""),
            plain(str(row["started"])),
            plain(row["holder"] or ""),
            plain(row["model_dir"]),
        )
    console.print(table)
    return COMPLETED


def _existing(model_dir: str) -> Path:
    path = Path(model_dir)
    if not os.path.isdir(path):  # False too for what is too long to be a path
        raise ConfigError("is no directory", file=model_dir)
    return path


def _row(run: Run) -> dict[str, Any]:
    told = run.told()
    status, holder = _state(run, told)
    phases = told.get("phases", [])
    return {
        "run": run.run_id,
        "job": told.get("job", ""),
        "status": status,
        "phase": phases[-1]["name"] if phases else None,
        "started": told.get("started", ""),
        "holder": holder,
        "model_dir": str(run.model_dir),
    }


def _state(run: Run, told: dict[str, Any]) -> tuple[str, str | None]:
    """Give a run's status as people are told it, and who watches it."""
    status = str(told.get("status", "damaged"))
    if status != "running":
        return status, None
    try:
        holder = holder_of(run)
    except OSError as exc:
        return status, f"unknown: {exc.strerror}"
    return ("running" if holder else "orphaned"), holder


# -- cancel -----------------------------------------------------------------------------------------


def cancel(name: str, *, with_checkpoint: bool, as_json: bool) -> int:
    """End a run, through whoever watches it or, where nobody does, from here; gives 0 if it is cancelled.

    `with_checkpoint`: its ranks are asked to save first.
    """
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
    """Wait until a run has ended, and end it where nobody watches it; give how it ended."""
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


# -- clean ------------------------------------------------------------------------------------------


def clean(*, dry_run: bool, as_json: bool) -> int:
    """End the processes and remove the directories and links of runs that have ended or are gone."""
    found, removed, is_all = [], [], True
    for path in _left_behind():
        found.append(str(path))
        try:
            if not dry_run:
                _remove(path)
                removed.append(str(path))
        except OSError as exc:
            is_all = False
            print(plaintext.as_line(f"error: {path} cannot be removed: {exc.strerror}"), file=sys.stderr)
    _tell_cleaned(found, removed, dry_run=dry_run, as_json=as_json)
    return COMPLETED if is_all else FAILED


def _tell_cleaned(found: Sequence[str], removed: Sequence[str], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print(plaintext.as_json({"found": found, "removed": removed}))
        return
    for path in found if dry_run else removed:
        print(plaintext.as_line(f"{'would remove' if dry_run else 'removed'} {path}"))
    if not found:
        print("nothing was left behind")


def _left_behind() -> Iterator[Path]:
    """Give what runs that were begun here left, as soon as it is seen that they will not be gone on with.

    What is in the run-time directory and is no such run's is nobody's to judge.
    """
    runs = {run.run_id: run for run in known_runs()}
    for link in sorted(registry().iterdir()) if registry().is_dir() else ():
        run = runs.get(link.name)
        if run is not None and _is_over(run):
            yield from _runtime_directories(run.run_id, run)
        elif _is_dangling(link):
            yield from _runtime_directories(link.name, None)
            yield link


def _is_over(run: Run) -> bool:
    """Whether a run has ended and nobody is busy with it; not where that cannot be known."""
    try:
        return run.told().get("status", "running") != "running" and holder_of(run) is None
    except OSError:
        return False


def _is_dangling(link: Path) -> bool:
    """Whether what a link leads to has been deleted; not where it cannot be reached just now."""
    if not link.is_symlink():
        return False
    try:
        link.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _runtime_directories(run_id: str, run: Run | None) -> Iterator[Path]:
    """Give the directories that are there, where they are now by default and where the run says it had it."""
    places = {runtime_root() / run_id}
    if run is not None:
        with suppress(ConfigError):  # run.json is damaged, and leads anywhere
            places.add(recorded_runtime(run))
    for place in sorted(places):
        if place.is_dir() and place.lstat().st_uid == os.getuid() and not place.is_symlink():
            yield place


def _remove(path: Path) -> None:
    """Remove a link, or a run-time directory with all that runs there; raises OSError."""
    if path.is_symlink():
        path.unlink()
        return
    with suppress(FileNotFoundError):  # somebody else cleans as well
        clear_directory(path)
    if path.exists():
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
