"""The Slurm jobs that a run holds, by its files: for `prefect-ft status` and `clean`."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from prefect_ft.amounts import count
from prefect_ft.backends.slurm.allocations import Allocations, job_of, jobs_left, recorded_in
from prefect_ft.backends.slurm.commands import Slurm
from prefect_ft.clock import utc_at
from prefect_ft.worker.holder import ENDED

LOOK_S = 0.2
"""How often to check whether a released allocation has ended."""

RELEASE_S = 10.0
"""How long a holder may take to end before its job is cancelled."""

_log = logging.getLogger(__name__)


def standing(run_root: Path) -> list[str]:
    """Describe the jobs that a run holds in Slurm, from its files."""
    allocations = Allocations(run_root)
    name, lines = allocations.current, []
    found = None if name is None else allocations.named(name)
    if found is not None and not allocations.has_ended(found.name):
        until = "" if found.ends_s is None else f" until {utc_at(found.ends_s)}"
        lines.append(f"Slurm job {found.job}: {count(len(found.nodes), 'node')}{until}")
    lines += [f"Slurm job {job} is in the queue: squeue --start -j {job}" for job in allocations.waiting]
    return lines


def clear(directory: Path) -> None:
    """Release a run's jobs, by its run-time directory; an allocation that it did not submit stays."""
    allocations = recorded_in(directory)
    if allocations is None:
        name, jobs = jobs_left(directory)
        if name and (wrong := Slurm().cancel(jobs, f"--name={name}")) is not None:
            _log.warning("jobs %s may be left: %s", ", ".join(jobs), wrong)
        return
    slurm = Slurm()
    if allocations.is_submitting:  # a job may have been submitted that was not recorded
        allocations.note(*(slurm.named(jobs_left(directory)[0]) or ()))
    jobs = allocations.submitted
    if (wrong := slurm.cancel(jobs, "--state=PENDING")) is not None:
        _log.warning("jobs %s may be left in the queue: %s", ", ".join(jobs), wrong)
    names = [path.name for path in allocations.directory.glob("slurm-*")]
    for name in names:
        allocations.release(name)
    own = [name for name in names if job_of(name) in jobs]
    deadline = time.monotonic() + RELEASE_S
    while own and time.monotonic() < deadline:
        own = [name for name in own if not (allocations.directory / name / ENDED).exists()]
        time.sleep(LOOK_S)
    if (wrong := slurm.cancel([job_of(name) for name in own])) is not None:
        _log.warning("the allocation may be left: %s", wrong)
