"""Builds the batch job that holds an allocation. Pure: `lending` submits it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath

from prefect_ft.backends.slurm.config import SlurmInfrastructure

NAME_LIMIT = 100


def job_name(job: str, run_id: str) -> str:
    """Return the name shared by all jobs of a run and by no other job: successors wait for it."""
    return f"{job[:NAME_LIMIT]}-{run_id}"


def options(
    given: SlurmInfrastructure, *, name: str, log: PurePath, cwd: PurePath, exclude: Sequence[str] = ()
) -> list[str]:
    """Return sbatch's options for an allocation of a run."""
    nodes = (given.nodes or 1) + given.spares
    flags: list[str | None] = [
        f"--job-name={name}",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        _option("partition", given.partition),
        _option("account", given.account),
        _option("qos", given.qos),
        _option("time", given.time),
        _option("constraint", given.constraint),
        _option("gres", given.gres),
        _option("gpus-per-node", given.gpus_per_node),
        _option("exclude", ",".join(dict.fromkeys((*given.exclude, *exclude))) or None),
        "--no-kill",
        "--no-requeue",
        "--open-mode=append",
        f"--output={log}",
        f"--chdir={cwd}",
        "--export=ALL",
    ]
    more = [
        f"--{option}" if value is True else f"--{option}={value}"
        for option, value in given.sbatch.items()
        if value is not False
    ]
    return [*(each for each in flags if each is not None), *more]


def _option(name: str, value: str | None) -> str | None:
    return None if value is None else f"--{name}={value}"


def script(python: str, payload: PurePath, directory: PurePath) -> str:
    """Return the batch script: it starts the node servers, and waits until the run releases the allocation."""
    words = shlex.join((python, "-I", "-S", str(payload), "holder", str(directory)))
    return f"#!/bin/sh\n# The allocation of a run of prefect-ft.\nexec {words}\n"
