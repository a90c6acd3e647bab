"""`list`: the runs known on this machine, and the process that watches each."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prefect_ft import plaintext
from prefect_ft.cli.arguments import add_json
from prefect_ft.cli.exits import COMPLETED
from prefect_ft.errors import ConfigError
from prefect_ft.run import Run, holder_of, known_runs, runs_in


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model directory to which the list is limited."""
    add_json(parser)
    parser.add_argument(
        "model_dir", metavar="MODEL_DIR", nargs="?", help="list only the runs of this model directory"
    )


def run(arguments: argparse.Namespace) -> int:
    """List the runs."""
    return _list(arguments.model_dir, as_json=arguments.json)


def _list(model_dir: str | None, *, as_json: bool) -> int:
    """Print the runs begun on this machine, or those of a model directory, oldest first."""
    runs = known_runs() if model_dir is None else runs_in(_existing(model_dir))
    rows = [_row(run) for run in runs]
    if as_json:
        print(plaintext.as_json(rows, indent=2))
        return COMPLETED
    if rows:
        _show(rows)
    else:
        nothing = (
            "no runs are known on this machine" if model_dir is None else f"no run has begun in {model_dir}"
        )
        print(plaintext.as_line(nothing))
    return COMPLETED


def _show(rows: Iterable[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from prefect_ft.cli.show import console_for
    from prefect_ft.console import plain
    from prefect_ft.report.terminal import STATUS_STYLES

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
    console_for().print(table)


def _existing(model_dir: str) -> Path:
    path = Path(model_dir)
    if not os.path.isdir(path):  # also False for a path that is too long
        raise ConfigError("is not a directory", file=model_dir)
    return path


def _row(run: Run) -> dict[str, Any]:
    record = run.record()
    status, holder = _state(run, record)
    phases = record.get("phases", [])
    return {
        "run": run.run_id,
        "job": record.get("job", ""),
        "status": status,
        "phase": phases[-1]["name"] if phases else None,
        "started": record.get("started", ""),
        "holder": holder,
        "model_dir": str(run.model_dir),
    }


def _state(run: Run, record: dict[str, Any]) -> tuple[str, str | None]:
    """Return a run's status as shown, and its holder."""
    status = str(record.get("status", "damaged"))
    if status != "running":
        return status, None
    try:
        holder = holder_of(run)
    except OSError as exc:
        return status, f"unknown: {exc.strerror}"
    return ("running" if holder else "orphaned"), holder
