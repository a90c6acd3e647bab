"""What can be known to be wrong before anything starts: found here, so that nothing is half-started."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from prefect_ft.config import Infrastructure, JobConfig, Phase, check_places, given_in, in_a_volume
from prefect_ft.decide import initial_placement
from prefect_ft.errors import BackendError, ConfigError
from prefect_ft.pool.quarantine import read


def check(job: JobConfig) -> None:
    """Raise ConfigError, with the field, for the first thing that cannot work on this machine."""
    check_places(job)
    _check_writable(job.model_dir, "model_dir")
    if job.journal_dir is not None:
        _check_writable(job.journal_dir, "journal_dir")
    for index, phase in enumerate(job.phases):
        where, infrastructure = f"phases[{index}]", job.infrastructure_of(index)
        is_here = infrastructure.type == "process"
        if is_here and not Path(phase.cwd or ".").is_dir():
            raise ConfigError(f"{phase.cwd} is not a directory", field=f"{where}.cwd")
        if phase.checkpoints is not None:
            path, field = phase.checkpoints.path, f"{where}.checkpoints.path"
            is_inside = infrastructure.type != "process" and in_a_volume(path, infrastructure)
            if infrastructure.type == "kubernetes" and not is_inside:
                raise ConfigError(f"{path} is in no volume of the pods, and would end with them", field=field)
            _check_checkpoints(path, field, is_inside=is_inside)
    if job.infrastructure_of(0).type == "process":
        _check_command(job.phases[0], given_in({**os.environ, **job.env_of(0)}), "phases[0].command")


def check_engines(job: JobConfig) -> None:
    """Raise ConfigError for the first container engine or cluster that a new run of a job could not begin on.

    Gets the images where an engine has none.
    """
    for index, phase in enumerate(job.phases):
        own = phase.infrastructure is not None
        if index == 0 or own:
            field = f"phases[{index}].infrastructure" if own else "infrastructure"
            _check_infrastructure(job.infrastructure_of(index), field)


def _check_infrastructure(infrastructure: Infrastructure, field: str) -> None:
    if infrastructure.type == "docker":
        from prefect_ft.backends.preparing import check_systems  # noqa: PLC0415  (its client costs 0.1 s)

        check_systems(infrastructure, field)
    elif infrastructure.type == "kubernetes":
        try:
            from prefect_ft.backends.cluster_check import check_cluster  # noqa: PLC0415  (its client costs a second)
        except BackendError as exc:  # its client is not installed
            raise ConfigError(str(exc), field=f"{field}.type") from exc
        check_cluster(infrastructure, field)


def quarantined(job: JobConfig) -> tuple[str, ...]:
    """Give the systems of a job that a run of it may not begin with.

    Raises ConfigError where its quarantine cannot be used, or leaves a phase with too few systems.
    """
    if job.quarantine is None:
        return ()
    _check_writable(str(Path(job.quarantine).parent), "quarantine")
    out = {entry.system for entry in read(Path(job.quarantine))}
    for index in range(len(job.phases)):
        _check_enough(job, index, out, job.quarantine)
    pool = [
        system.name for index in range(len(job.phases)) for system in job.infrastructure_of(index).systems
    ]
    return tuple(sorted(out & {*pool}))


def _check_enough(job: JobConfig, index: int, out: Collection[str], quarantine: str) -> None:
    policy = job.policy(index, out)
    if initial_placement(policy) is not None:
        return
    kept_out = [name for name in policy.systems if name in out]
    needed = policy.min_num_systems if policy.elastic else policy.workers
    raise ConfigError(
        f"phase {job.phases[index].name} needs {needed} systems, and {len(policy.systems) - len(kept_out)} of its "
        f"{len(policy.systems)} may be used: {', '.join(kept_out)} in quarantine. Name more systems, or write "
        f"`prefect-ft pool release SYSTEM --file {quarantine}` once one is repaired",
        file=quarantine,
    )


def _check_checkpoints(path: str, field: str, *, is_inside: bool) -> None:
    """`is_inside`: the path is one of the containers', and nothing is known of it here."""
    if "://" in path:
        raise ConfigError("checkpoints at a URL cannot be verified yet; give a directory", field=field)
    if not is_inside:
        _check_writable(path, field)


def _check_command(phase: Phase, env: Mapping[str, str], field: str) -> None:
    """Look for the first phase's command; an earlier phase may yet make a later one's."""
    name = (phase.launched or phase).command[0]
    if name == "python":
        return
    path = str(Path(phase.cwd or ".") / name) if "/" in name else name
    if shutil.which(path, path=env.get("PATH")) is None:
        raise ConfigError(
            f"command not found: {name!r}; write a program that is on PATH, or a path from {phase.cwd}",
            field=field,
        )


def _check_writable(directory: str, field: str) -> None:
    """Make the directory and a file in it, for real: permissions alone do not tell."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as exc:
        raise ConfigError(f"{directory} cannot be written: {exc.strerror}", field=field) from exc
