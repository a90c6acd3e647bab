"""A worker's part of a checkpoint whose files are spread over the disks of several machines.

A part is complete when nothing in it is cut off, whatever is missing; other parts must have what is missing. It says
nothing about the whole: the orchestrator, which knows all parts, combines them.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple

from prefect_ft.worker.checkpoints.entry import UNMARKED, Entry, Gap, Verdict
from prefect_ft.worker.checkpoints.layouts import HF_STATE, vouched
from prefect_ft.worker.checkpoints.names import is_temporary_inside
from prefect_ft.worker.checkpoints.shards import DCP_METADATA, is_of_a_set, shard_labels
from prefect_ft.worker.checkpoints.trackers import ITERATION
from prefect_ft.worker.checkpoints.trees import index_fault, tree_gap

MAX_NAMES = 1000
"""Of a part with more files, only those that belong to sets are listed."""

_MARKERS = (DCP_METADATA, HF_STATE)
"""Files that are written after all ranks have written theirs."""


class Part(NamedTuple):
    """The files that a part needs according to its own content, and those that it has."""

    needs: Tuple[str, ...] = ()
    has: Tuple[str, ...] = ()


def part_of(entry: Entry, verdict: Verdict) -> Tuple[Verdict, Part]:
    """Return the verdict on an entry as a part, and what it needs and has; `verdict` is the one on it as a whole."""
    if verdict.complete is not False:
        return verdict, Part(has=_names(entry))
    if not isinstance(verdict.reason, Gap):
        return verdict, Part()
    temporary = [name for name in entry.files if is_temporary_inside(name.rpartition("/")[2])]
    if temporary:
        return Verdict(
            False, f"{min(temporary)} is a temporary file: it is being written or was left behind"
        ), Part()
    needs = {*verdict.reason.names}
    for fault in (tree_gap(entry), index_fault(entry)):
        if isinstance(fault, Gap):
            needs.update(fault.names)
        elif fault is not None:
            return Verdict(False, fault), Part()
    if not entry.size:
        return Verdict(False, "it holds no files"), Part()
    marker = next((name for name in _MARKERS if name in entry.files), None)
    whole = UNMARKED if marker is None else vouched(entry, marker)
    return whole, Part(tuple(sorted(needs)), _names(entry))


def _names(entry: Entry) -> Tuple[str, ...]:
    names = [name for name in entry.files if len(entry.files) <= MAX_NAMES or is_of_a_set(name)]
    tracked = [ITERATION] if entry.iteration is not None and entry.iteration.complete else []
    return tuple(sorted({*names, *shard_labels(entry.files), *tracked}))
