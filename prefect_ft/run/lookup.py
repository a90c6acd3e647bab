"""Finds runs by id, by model directory, or by phase directory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect_ft.errors import ConfigError
from prefect_ft.formats import check_run
from prefect_ft.run.identity import JOURNAL, RUNS, Run, flow_runs, read_run, registry


def phase_directories(run: str) -> list[Path]:
    """Return the phase directories that RUN names: a run id, a model directory (its latest run) or a phase.

    Raises ConfigError with what was looked for.
    """
    return [Path(run)] if is_phase(run) else phases_of(find_run(run))


def is_phase(name: str) -> bool:
    """Whether RUN names a phase's directory, also one that was moved away from its run."""
    return bool(name) and os.path.isfile(os.path.join(name, JOURNAL))


def find_run(name: str) -> Run:
    """Return the run that RUN names: a run id, or a directory (its latest run; a phase's own).

    Raises ConfigError with what was looked for, and for a run whose run.json is damaged.
    """
    try:
        found = _found(name)
    except (OSError, UnicodeDecodeError, RuntimeError) as exc:  # a key that is none; a link to itself
        raise ConfigError(f"cannot be looked at: {getattr(exc, 'strerror', exc)}", file=name) from exc
    if found is None:
        raise ConfigError("no such run: give a run id, a model directory or a phase directory", file=name)
    record_of(found)
    return found


def record_of(run: Run) -> dict[str, Any]:
    """Return run.json; raises ConfigError where it is empty, or in the format of a later version."""
    record = run.record()
    check_run(record, str(run.root))
    if not record:
        path = str(run.root / "run.json")
        raise ConfigError("is damaged, or gone with its run: put it back from a copy", file=path)
    return record


def phases_of(run: Run) -> list[Path]:
    """Return the directories of the phases that have begun; raises ConfigError."""
    return [run.model_dir / phase["directory"] for phase in record_of(run).get("phases", [])]


def run_of_phase(phase: Path) -> Run | None:
    """Return the run of a phase's directory; None: the directory was moved away from its run."""
    name = phase.resolve().name
    for run in runs_in(phase.resolve().parent):
        if any(each["directory"] == name for each in run.record().get("phases", [])):
            return run
    return None


def run_of_flow_run(flow_run_id: str, model_dir: Path | None = None) -> Run | None:
    """Return the run that a flow run began or resumed: on this machine, or in a model directory."""
    if model_dir is None:
        with suppress(OSError):
            return read_run((flow_runs() / Path(flow_run_id).name).resolve())
        return None
    return next(
        (run for run in reversed(runs_in(model_dir)) if flow_run_id in run.record().get("flow_run_ids", [])),
        None,
    )


def runs_in(model_dir: Path) -> list[Run]:
    """Return the runs of a model directory, the oldest first."""
    return sorted(_readable(model_dir / RUNS), key=_began)


def known_runs() -> list[Run]:
    """Return the runs that this user began on this machine and that still exist, the oldest first."""
    return sorted(_readable(registry()), key=_began)


def latest_run(model_dir: Path) -> Run | None:
    """Return the run of a model directory that began last."""
    runs = runs_in(model_dir)
    return runs[-1] if runs else None


def _began(run: Run) -> str:
    """Return when a run began, in digits; where run.json is damaged, from the run's id."""
    started = run.record().get("started")
    return re.sub(r"\D", "", str(started) if started else run.run_id.rpartition("-")[0] + "999")


def _readable(directory: Path) -> Iterator[Run]:
    if not directory.is_dir():
        return
    for path in directory.iterdir():
        # Another user's, or just being removed; a key that is none; a link to itself.
        with suppress(OSError, UnicodeDecodeError, RuntimeError):
            if (run := read_run(path.resolve())) is not None:
                yield run


def _found(name: str) -> Run | None:
    if not name:  # an unset shell variable must not mean the working directory
        return None
    if is_phase(name):
        return run_of_phase(Path(name))
    if (Path(name) / RUNS).is_dir():
        return latest_run(Path(name))
    return read_run((registry() / Path(name).name).resolve())
