"""Finding runs again: by id, by model directory, by phase directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prefect_ft.errors import ConfigError
from prefect_ft.run.identity import JOURNAL, RUNS, Run, read_run, registry


def phase_directories(run: str) -> list[Path]:
    """Give the phase directories that RUN names: a run id, a model directory (its latest run) or a phase.

    Raises ConfigError with what was looked for.
    """
    if os.path.isfile(os.path.join(run, JOURNAL)):  # of any run, also one that was moved away alone
        return [Path(run)]
    found = find_run(run)
    return [found.model_dir / phase["directory"] for phase in found.told().get("phases", [])]


def find_run(name: str) -> Run:
    """Give the run that RUN names: a run id, or a directory (its latest run; a phase's own).

    Raises ConfigError with what was looked for.
    """
    path = Path(name)
    try:
        if (path / JOURNAL).is_file():
            found = _run_of_phase(path)
        elif (path / RUNS).is_dir():
            found = latest_run(path)
        else:
            found = _registered(name)
    except OSError as exc:
        raise ConfigError(f"cannot be looked at: {exc.strerror}", file=name) from exc
    if found is None:
        raise ConfigError("no such run: give a run id, a model directory or a phase directory", file=name)
    return found


def has_ended(name: str) -> bool:
    """Whether nothing more will come of what RUN names; of a phase that was moved away nothing will."""
    if not os.path.isfile(os.path.join(name, JOURNAL)):
        return find_run(name).status != "running"
    run = _run_of_phase(Path(name))
    return run is None or run.status != "running"


def runs_in(model_dir: Path) -> list[Run]:
    """Give the runs of a model directory, the oldest first."""
    return sorted(_readable(model_dir / RUNS), key=lambda run: str(run.told().get("started")))


def known_runs() -> list[Run]:
    """Give the runs that this user began on this machine and that are still there, the oldest first."""
    return sorted(_readable(registry()), key=lambda run: str(run.told().get("started")))


def latest_run(model_dir: Path) -> Run | None:
    """Give the run of a model directory that began last."""
    runs = runs_in(model_dir)
    return runs[-1] if runs else None


def _readable(directory: Path) -> Iterator[Run]:
    if not directory.is_dir():
        return
    for path in directory.iterdir():
        with suppress(OSError):  # another user's, or just being removed
            if (run := read_run(path.resolve())) is not None:
                yield run


def _run_of_phase(phase: Path) -> Run | None:
    name = phase.resolve().name
    for run in runs_in(phase.resolve().parent):
        if any(each["directory"] == name for each in run.told().get("phases", [])):
            return run
    return None


def _registered(run_id: str) -> Run | None:
    return read_run((registry() / Path(run_id).name).resolve())
