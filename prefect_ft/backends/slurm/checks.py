"""Checks, before a run begins, whether Slurm would grant the allocation that a job describes."""

from __future__ import annotations

import os
from pathlib import Path

from prefect_ft.amounts import count
from prefect_ft.backends.slurm.commands import Slurm, check_commands, job_here, run
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.backends.slurm.script import options
from prefect_ft.config.fields import shown
from prefect_ft.errors import ConfigError


def check(infrastructure: SlurmInfrastructure, field: str) -> None:
    """Raise ConfigError for the first reason why no allocation could be granted."""
    check_commands(f"{field}.type")
    if job_here(os.environ) is not None:
        check_room(infrastructure, os.environ.get("SLURM_JOB_NUM_NODES", ""), field)
        return
    if infrastructure.nodes is None:
        raise ConfigError(
            "missing; without an allocation around, say how many to ask for", field=f"{field}.nodes"
        )
    if infrastructure.partition is not None:
        check_partition(infrastructure.partition, Slurm().partitions(), f"{field}.partition")
    words = options(infrastructure, name="prefect-ft-check", log=Path("/dev/null"), cwd=Path("/"))
    result = run(("sbatch", "--test-only", *words, "--wrap=true"), 60.0)
    if not result.ok and "no answer in" not in result.err:
        raise ConfigError(f"Slurm refuses it: {result.err or result.out}", field=field)


def check_room(infrastructure: SlurmInfrastructure, nodes: str, field: str) -> None:
    """Raise ConfigError where the allocation around has too few nodes; `nodes` is their number."""
    wanted = infrastructure.nodes if infrastructure.nodes is not None else infrastructure.spares + 1
    if nodes.isdecimal() and wanted > int(nodes):
        name = "nodes" if infrastructure.nodes is not None else "spares"
        has = count(int(nodes), "node")
        raise ConfigError(f"the allocation around has {has}; write fewer", field=f"{field}.{name}")


def check_partition(names: str, known: set[str] | None, field: str) -> None:
    """Raise ConfigError for an unknown partition; with `known` None, accept all."""
    for name in names.split(","):
        if known is not None and name not in known:
            raise ConfigError(
                f"there is no partition {shown(name)}; there are {', '.join(sorted(known))}", field=field
            )
