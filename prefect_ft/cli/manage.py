"""`list`, `cancel` and `clean`: the runs of this machine, who watches them, and what they left behind."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from prefect_ft.backends.process import clear_directory
from prefect_ft.cli import COMPLETED, FAILED
from prefect_ft.cli.show import COLOURS, console_for
from prefect_ft.errors import ConfigError, RunHeldError
from prefect_ft.run import Run, find_run, holder_of, known_runs, runs_in, vacancy
from prefect_ft.run.identity import registry
from prefect_ft.run.runtime import runtime_root
from prefect_ft.runs import end_unwatched, job_of

ASK_S = 0.2
"""How often a run that somebody else is ending is looked at."""


# -- list -------------------------------------------------------------------------------------------


def list_runs(model_dir: str | None, *, as_json: bool) -> int:
    """Print the runs that were begun here, or those of a model directory, the oldest first."""
    runs = known_runs() if model_dir is None else runs_in(_existing(model_dir))
    rows = [_row(run) for run in runs]
    if as_json:
        print(json.dumps(rows, indent=2))  # noqa: T201
        return COMPLETED
    console = console_for()
    if not rows:
        console.print("no runs are known here" if model_dir is None else f"no run has begun in {model_dir}")
        return COMPLETED
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("run", "job", "status", "phase", "began", "watched by", "model directory"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(
            row["run"],
            Text(row["job"]),
            Text(row["status"], style=COLOURS.get(row["status"], "yellow")),
            Text(row["phase"] or ""),
            row["started"],
            Text(row["holder"] or ""),
            Text(row["model_dir"]),
        )
    console.print(table)
    return COMPLETED


def _existing(model_dir: str) -> Path:
    path = Path(model_dir)
    if not path.is_dir():
        raise ConfigError("is no directory", file=model_dir)
    return path


def _row(run: Run) -> dict[str, Any]:
    told = run.told()
    holder = holder_of(run) if run.status == "running" else None
    phases = told.get("phases", [])
    return {
        "run": run.run_id,
        "job": told.get("job", ""),
        "status": "orphaned" if run.status == "running" and holder is None else run.status,
        "phase": phases[-1]["name"] if phases else None,
        "started": told.get("started", ""),
        "holder": holder,
        "model_dir": str(run.model_dir),
    }


# -- cancel -----------------------------------------------------------------------------------------


def cancel(name: str, *, as_json: bool) -> int:
    """End a run, through whoever watches it or, where nobody does, from here; gives 0 if it is cancelled."""
    run = find_run(name)
    if run.status != "running":
        raise ConfigError(f"run {run.run_id} has ended already: {run.status}", file=name)
    run.want_cancelled("prefect-ft cancel")
    is_told = False
    while run.status == "running":
        try:
            free = vacancy(run.model_dir, job_of(run).lease_s)
            if free.previous is not None and free.previous.run_id == run.run_id and run.status == "running":
                end_unwatched(free.go_on(), "prefect-ft cancel")
        except RunHeldError as held:
            if not is_told:
                print(f"asked {held.holder}, which watches the run", file=sys.stderr)  # noqa: T201
            is_told = True
            time.sleep(ASK_S)
    if as_json:
        print(json.dumps({"run": run.run_id, "status": run.status}))  # noqa: T201
    else:
        print(f"run {run.run_id}: {run.status}")  # noqa: T201
    return COMPLETED if run.status == "cancelled" else FAILED


# -- clean ------------------------------------------------------------------------------------------


def clean(*, dry_run: bool, as_json: bool) -> int:
    """End the processes and remove the directories and links of runs that have ended or are gone."""
    found = [*_dead_directories(), *_dead_links()]
    for path in () if dry_run else found:
        if path.is_symlink():
            path.unlink()
        else:
            clear_directory(path)
    names = list(map(str, found))
    if as_json:
        print(json.dumps({"found": names, "removed": [] if dry_run else names}))  # noqa: T201
        return COMPLETED
    for path in found:
        print(f"{'would remove' if dry_run else 'removed'} {path}")  # noqa: T201
    if not found:
        print("nothing was left behind")  # noqa: T201
    return COMPLETED


def _dead_directories() -> Iterator[Path]:
    """Give the run-time directories of runs that will not be gone on with."""
    root = runtime_root()
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        link = registry() / path.name
        if not link.is_symlink():
            continue  # not a run's, or of a run that was begun elsewhere: nothing is known of it
        run = next((run for run in known_runs() if run.run_id == path.name), None)
        if run is None or (run.status != "running" and holder_of(run) is None):
            yield path


def _dead_links() -> Iterator[Path]:
    """Give the links to runs whose directories have been deleted."""
    if registry().is_dir():
        yield from (path for path in sorted(registry().iterdir()) if path.is_symlink() and not path.exists())
