"""The directories of a job that must not contain each other: those of runs, and checkpoints.

A run's files may look like a checkpoint, and a script that keeps only its newest checkpoints deletes what is
beside them. Reads links, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from prefect_ft.config.infrastructure import Infrastructure
from prefect_ft.config.job import JobConfig
from prefect_ft.config.sections import Checkpoints
from prefect_ft.errors import ConfigError
from prefect_ft.worker.checkpoints.names import OF_A_RUN, PatternNames, UsualNames

_MADE = (".prefect-ft", "20000101_000000_restartable", "20000101_000000_restartable-1")
"""Names that runs create in their model directory."""


def check_places(job: JobConfig) -> None:
    """Raise ConfigError, with the field, where a job with absolute paths mixes such directories."""
    for field, message in _problems(job):
        raise ConfigError(message, field=field)


def _problems(job: JobConfig) -> Iterator[tuple[str, str]]:
    own = {"model_dir": job.model_dir, "journal_dir": job.journal_dir}
    remedy = f"write a directory for the checkpoints alone, like {os.path.join(job.model_dir, 'checkpoints')}"
    for index, phase in enumerate(job.phases):
        checkpoints = phase.checkpoints
        if checkpoints is None or not _is_here(checkpoints.path, job.infrastructure_of(index)):
            continue
        field = f"phases[{index}].checkpoints.path"
        systems = [system.name for system in job.infrastructure_of(index).systems]
        for path in map(os.path.realpath, checkpoints.places(systems)):
            for name, directory in own.items():
                is_shared = directory is not None and os.path.realpath(directory) == path
                if is_shared and not _names_no_run(checkpoints):
                    yield field, f"is {name} too, where runs leave files of their own; {remedy}"
            if any(OF_A_RUN.fullmatch(part) for part in _below(os.path.realpath(job.model_dir), path)[:1]):
                yield field, f"is inside what a run leaves in model_dir; {remedy}"
            step = _step_of(_below(path, os.path.realpath(job.model_dir)), checkpoints)
            if step is not None:
                where = f"is inside the checkpoints of phase {phase.name!r}, where its name would make it the"
                yield "model_dir", f"{where} checkpoint of step {step}; write a directory beside them"


def _names_no_run(checkpoints: Checkpoints) -> bool:
    """Return whether checkpoints have a pattern that matches none of a run's files beside them."""
    if checkpoints.pattern is None:
        return False
    names = PatternNames(checkpoints.pattern)
    taken = (names.read(name) is not None or names.enters(name) or names.overwritten(name) for name in _MADE)
    return not any(taken)


def _is_here(path: str, infrastructure: Infrastructure) -> bool:
    """Return whether a path of checkpoints is one of this machine."""
    return "://" not in path and not infrastructure.mounts(path)


def _below(directory: str, path: str) -> list[str]:
    """Return the names that lead from a directory to a path below it; none if it is not below."""
    inside = os.path.relpath(path, directory).split(os.sep)
    return [] if inside[0] in (os.curdir, os.pardir) else inside


def _step_of(names: list[str], checkpoints: Checkpoints) -> int | None:
    """Return the step of the checkpoint that the first of these names, or the first two, look like."""
    reader = UsualNames() if checkpoints.pattern is None else PatternNames(checkpoints.pattern)
    read = (reader.read("/".join(names[:depth])) for depth in (1, 2) if len(names) >= depth)
    return next((step for step in read if isinstance(step, int)), None)
