"""What can be known to be wrong before anything starts: found here, so that nothing is half-started."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from prefect_ft.backends.scope import agent_prefix
from prefect_ft.config import Infrastructure, JobConfig, Phase, check_places, given_in, in_a_volume
from prefect_ft.decide import initial_placement
from prefect_ft.errors import BackendError, ConfigError
from prefect_ft.pool.quarantine import Quarantined, read
from prefect_ft.preflight.capacity import most_ranks, this_machine

_INTERPRETERS = {".py": "python"}
"""What runs a script that is not executable, by the end of its name; bash where it is none of these."""


def check(job: JobConfig) -> None:
    """Raise ConfigError, with the field, for the first thing that cannot work on this machine."""
    check_places(job)
    _check_writable(job.model_dir, "model_dir")
    if job.journal_dir is not None:
        _check_writable(job.journal_dir, "journal_dir")
    for index, phase in enumerate(job.phases):
        where, infrastructure = f"phases[{index}]", job.infrastructure_of(index)
        is_here = infrastructure.type == "process"
        if is_here and not os.path.isdir(phase.cwd or "."):
            raise ConfigError(f"{phase.cwd} is not a directory", field=f"{where}.cwd")
        if is_here:
            _check_ranks(phase, infrastructure.workers, f"{where}.nproc_per_worker")
        if phase.checkpoints is not None:
            path, field = phase.checkpoints.path, f"{where}.checkpoints.path"
            is_inside = infrastructure.type != "process" and in_a_volume(path, infrastructure)
            if infrastructure.type == "kubernetes" and not is_inside:
                raise ConfigError(f"{path} is in no volume of the pods, and would end with them", field=field)
            _check_checkpoints(path, field, is_inside=is_inside)
    if job.infrastructure_of(0).type == "process":
        _check_command(job.phases[0], given_in({**os.environ, **job.env_of(0)}), "phases[0].command")


def check_kept(job: JobConfig, has_saved: Mapping[int, bool]) -> None:
    """Raise ConfigError for the first directory that a recorded job names and that is gone.

    Before anything makes it anew, and empty: what was saved there may have been moved, or not be mounted.
    `has_saved`: the phases that are not complete, by index, and whether they have saved checkpoints.
    """
    for index, saved in has_saved.items():
        phase, infrastructure = job.phases[index], job.infrastructure_of(index)
        where = f"phases[{index}]"
        if infrastructure.type == "process" and phase.cwd is not None:
            _check_kept(phase.cwd, f"{where}.cwd")
        path = phase.checkpoints.path if phase.checkpoints is not None and saved else None
        if path is not None and (infrastructure.type == "process" or not in_a_volume(path, infrastructure)):
            _check_kept(path, f"{where}.checkpoints.path")


def _check_kept(directory: str, field: str) -> None:
    if os.path.isdir(directory):
        return
    gone = Path(directory)
    while not gone.parent.exists():
        gone = gone.parent
    raise ConfigError(
        f"{directory} is not there any more, and the run goes on with the paths with which it began. Mount it, or"
        f" where it was moved to NEW, link it: `ln -s NEW {gone}`. To go on without: `prefect-ft run JOB.yaml --fresh`",
        field=field,
    )


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
    out = {entry.system for entry in _quarantined_in(job.quarantine)}
    for index in range(len(job.phases)):
        _check_enough(job, index, out, job.quarantine)
    pool = [
        system.name for index in range(len(job.phases)) for system in job.infrastructure_of(index).systems
    ]
    return tuple(sorted(out & {*pool}))


def _quarantined_in(path: str) -> tuple[Quarantined, ...]:
    """Read a quarantine; what keeps it from being read at all is the fault of the field that names it."""
    try:
        return read(Path(path))
    except ConfigError as error:
        if error.line is not None:
            raise
        raise ConfigError(f"{path} {error.message}", field="quarantine") from error


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


def _check_ranks(phase: Phase, workers: int, field: str) -> None:
    """Refuse more ranks than this machine starts: the workers of the process backend are all on it."""
    ranks = phase.nproc_per_worker
    if ranks == "auto":
        return
    limit = most_ranks(this_machine(is_grouped=not agent_prefix()), workers)
    if limit is None or ranks <= limit.ranks:
        return
    where = f"{ranks} ranks" if workers == 1 else f"{ranks} ranks in each of {workers} workers"
    remedy = (
        f"write {limit.ranks} or fewer, or raise it"
        if limit.ranks > 0
        else "raise it, or write fewer workers"
    )
    raise ConfigError(f"{where} cannot be started here: {limit.why}; {remedy}", field=field)


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
    directory = phase.cwd or "."
    path = os.path.join(directory, name) if "/" in name else name
    if shutil.which(path, path=env.get("PATH")) is not None:
        return
    there = shutil.which(path, mode=os.F_OK, path=env.get("PATH")) or path
    if os.path.isfile(there):
        by_its_interpreter = json.dumps([_INTERPRETERS.get(os.path.splitext(name)[1], "bash"), name])
        remedy = f"chmod +x {there}, or write command: {by_its_interpreter} with the words that follow"
        raise ConfigError(f"{name!r} is not executable; {remedy}", field=field)
    if "/" in name and os.path.isdir(there):
        raise ConfigError(f"{name!r} is a directory; write a program that is in it", field=field)
    if "/" not in name and os.path.isfile(os.path.join(directory, name)):
        remedy = f"it is not on PATH, and lies in {directory}: write ./{name}"
    else:
        remedy = f"write a program that is on PATH, or a path from {directory}"
    raise ConfigError(f"command not found: {name!r}; {remedy}", field=field)


def _check_writable(directory: str, field: str) -> None:
    """Make the directory and a file in it, for real: permissions alone do not tell."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as exc:
        if os.path.lexists(directory) and not os.path.isdir(directory):
            raise ConfigError(f"{directory} is not a directory; write the path of one", field=field) from exc
        raise ConfigError(f"{directory} cannot be written: {exc.strerror}", field=field) from exc
