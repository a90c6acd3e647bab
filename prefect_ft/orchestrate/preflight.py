"""Checks before anything starts, so that no run fails half-started."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from prefect_ft.amounts import count
from prefect_ft.backends.kind import kind_of
from prefect_ft.config import Checkpoints, Infrastructure, JobConfig, check_places
from prefect_ft.decide import initial_placement
from prefect_ft.errors import ConfigError
from prefect_ft.run.quarantine import Quarantined, read
from prefect_ft.supervisor.bucket import Bucket
from prefect_ft.worker.checkpoints.entry import AwayError
from prefect_ft.worker.checkpoints.names import SYSTEM


def check(job: JobConfig) -> None:
    """Raise ConfigError, with the field, for the first setting that cannot work on this machine."""
    check_places(job)
    _check_writable(job.model_dir, "model_dir")
    if job.journal_dir is not None:
        _check_writable(job.journal_dir, "journal_dir")
    for index, phase in enumerate(job.phases):
        where, infrastructure = f"phases[{index}]", job.infrastructure_of(index)
        kind_of(infrastructure).check_phase(
            infrastructure, phase, job.env_of(index), where, is_first=index == 0
        )
        if phase.checkpoints is not None:
            _check_checkpoints(phase.checkpoints, infrastructure, f"{where}.checkpoints.path")


def check_kept(job: JobConfig, has_saved: Mapping[int, bool]) -> None:
    """Raise ConfigError for the first missing directory that a recorded job names.

    Call it before anything recreates the directory empty: it may have been moved, or not be mounted.
    `has_saved`: the incomplete phases, by index, and whether they have saved checkpoints.
    """
    for index, saved in has_saved.items():
        phase, infrastructure = job.phases[index], job.infrastructure_of(index)
        where = f"phases[{index}]"
        if infrastructure.ranks_are_here and phase.cwd is not None:
            _check_kept(phase.cwd, f"{where}.cwd")
        path = phase.checkpoints.path if phase.checkpoints is not None and saved else None
        if path is not None and "://" not in path and SYSTEM not in path and not infrastructure.mounts(path):
            _check_kept(path, f"{where}.checkpoints.path")


def _check_kept(directory: str, field: str) -> None:
    if os.path.isdir(directory):
        return
    gone = Path(directory)
    while not gone.parent.exists():
        gone = gone.parent
    raise ConfigError(
        f"{directory} no longer exists, and a resumed run uses its original paths. Mount it, or if it was moved to "
        f"NEW, link it: `ln -s NEW {gone}`. To start without it: `prefect-ft run JOB.yaml --fresh`",
        field=field,
    )


def check_engines(job: JobConfig) -> None:
    """Raise ConfigError for the first container engine or cluster on which a new run could not begin.

    Pulls missing images.
    """
    for index, phase in enumerate(job.phases):
        own = phase.infrastructure is not None
        if index == 0 or own:
            field = f"phases[{index}].infrastructure" if own else "infrastructure"
            infrastructure = job.infrastructure_of(index)
            kind_of(infrastructure).check(infrastructure, field)


def quarantined(job: JobConfig) -> tuple[str, ...]:
    """Return the systems of a job that are in quarantine.

    Raises ConfigError if the quarantine cannot be used, or leaves a phase with too few systems.
    """
    if job.quarantine is None:
        return ()
    _check_writable(str(Path(job.quarantine).parent), "quarantine")
    out = {entry.system for entry in _quarantined_in(job.quarantine)}
    for index in range(len(job.phases)):
        _check_enough(job, index, out, job.quarantine)
    pool = [
        system.name for index in range(len(job.phases)) for system in job.infrastructure_of(index).systems
    ]
    return tuple(sorted(out & {*pool}))


def _quarantined_in(path: str) -> tuple[Quarantined, ...]:
    """Read a quarantine; if the file as a whole cannot be read, the error names the field `quarantine`."""
    try:
        return read(Path(path))
    except ConfigError as error:
        if error.line is not None:
            raise
        raise ConfigError(f"{path} {error.message}", field="quarantine") from error


def _check_enough(job: JobConfig, index: int, out: Collection[str], quarantine: str) -> None:
    policy = job.policy(index, out)
    if not policy.systems:
        return  # a scheduler chooses them
    if initial_placement(policy) is not None:
        return
    kept_out = [name for name in policy.systems if name in out]
    needed = policy.min_num_systems if policy.elastic else policy.workers
    raise ConfigError(
        f"phase {job.phases[index].name} needs {count(needed, 'system')}, but "
        f"{len(policy.systems) - len(kept_out)} of its {len(policy.systems)} are usable; in quarantine: "
        f"{', '.join(kept_out)}. Add systems, or run "
        f"`prefect-ft pool release SYSTEM --file {quarantine}` once one is repaired",
        file=quarantine,
    )


def _check_checkpoints(checkpoints: Checkpoints, infrastructure: Infrastructure, field: str) -> None:
    path = checkpoints.path
    if checkpoints.is_remote:
        _check_reachable(path, field)
        return
    if not infrastructure.keeps(path):
        raise ConfigError(
            f"{path} is not in a volume of the workers and would be lost with them", field=field
        )
    if infrastructure.mounts(path):  # this machine cannot check it
        return
    if checkpoints.local and SYSTEM in path and not infrastructure.ranks_are_here:
        raise ConfigError(f"with {SYSTEM} it must be in a volume of the workers; add one", field=field)
    for place in checkpoints.places(system.name for system in infrastructure.systems):
        _check_writable(place, field)


def _check_reachable(url: str, field: str) -> None:
    """List what is at a URL; whether ranks may write there only they find out."""
    try:
        Bucket(url).listing(url)
    except AwayError as exc:
        raise ConfigError(f"{url} {exc}", field=field) from exc


def _check_writable(directory: str, field: str) -> None:
    """Create the directory and a file in it: permissions alone are not reliable."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as exc:
        if os.path.lexists(directory) and not os.path.isdir(directory):
            raise ConfigError(f"{directory} is not a directory; set the path of one", field=field) from exc
        raise ConfigError(f"{directory} cannot be written: {exc.strerror}", field=field) from exc
