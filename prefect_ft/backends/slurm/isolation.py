"""Keeps isolated nodes out of later allocations, and releases lost ones where configured."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from prefect_ft.backends.base import NODE_LOST
from prefect_ft.backends.isolation import following
from prefect_ft.backends.slurm.allocations import Allocations, parts_of, recorded_in
from prefect_ft.backends.slurm.commands import Slurm
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.journal.records import Line
from prefect_ft.model import Decision

_log = logging.getLogger(__name__)


def keeping_out(
    infrastructure: SlurmInfrastructure,
    directory: Path,
    lines: Callable[[], Sequence[Line]],
    slurm: Slurm | None = None,
) -> AbstractContextManager[None]:
    """Return a context in which Slurm learns of each isolated node; `directory` is the run-time directory."""
    asked = slurm or Slurm()

    def isolated(node: str, decision: Decision) -> None:
        allocations = recorded_in(directory)
        if allocations is not None:
            is_lost = decision.rule == NODE_LOST
            allocations.avoid(node, is_lost=is_lost)
            _exclude(infrastructure, allocations, asked)
            if is_lost and infrastructure.gives_back:
                _shrink(node, allocations, asked)

    return following(lines, isolated)


def _exclude(infrastructure: SlurmInfrastructure, allocations: Allocations, slurm: Slurm) -> None:
    """Exclude isolated nodes from the run's pending jobs."""
    avoided = ",".join(dict.fromkeys((*infrastructure.exclude, *allocations.avoided)))
    for job in allocations.submitted:
        try:
            job_state = slurm.state(job)
        except LookupError:
            continue
        if job_state is None or not job_state.is_pending:
            continue
        if (wrong := slurm.update(job, ExcNodeList=avoided)) is not None:
            _log.warning("job %s may be given isolated nodes (%s): %s", job, shlex.quote(avoided), wrong)


def _shrink(node: str, allocations: Allocations, slurm: Slurm) -> None:
    """Shrink the allocation by a lost node, unless the batch script runs there or the job is the user's own.

    Slurm would keep it, and charge for it, until it notices the loss itself.
    """
    now = allocations.current
    allocation = None if now is None else allocations.named(parts_of(now)[0])
    if allocation is None or allocation.job not in allocations.submitted or node not in allocation.nodes[1:]:
        return
    first, *others = allocation.nodes
    left = [first, *(each for each in others if not allocations.avoided.get(each))]
    wrong = slurm.update(allocation.job, NodeList=",".join(left), cwd=allocations.directory)
    if wrong is not None:
        _log.warning("the lost node %s stays in the allocation: %s", node, wrong)
