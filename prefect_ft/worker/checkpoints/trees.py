"""What is wrong with the files below a directory, each by its own format and all of them together.

Knows nothing of layouts; returns what it finds or `None`, and may raise OSError.
"""

from __future__ import annotations

from typing import Dict, Iterator, List, Optional

from prefect_ft.worker.checkpoints.entry import Entry, Gap
from prefect_ft.worker.checkpoints.formats import (
    FileCheck,
    document,
    json_file,
    safetensors,
    torch_file,
    zip_file,
    zip_or_unmarked,
)
from prefect_ft.worker.checkpoints.names import is_temporary_inside
from prefect_ft.worker.checkpoints.shards import (
    DCP_SHARD,
    dcp_fault,
    deepspeed_fault,
    is_deepspeed,
    numbered_fault,
)

_BY_SUFFIX: Dict[str, FileCheck] = {
    ".safetensors": safetensors,
    ".npz": zip_file,
    ".json": json_file,
    ".pt": torch_file,
    ".pth": torch_file,
    ".bin": zip_or_unmarked,
    ".ckpt": torch_file,
}
_NEVER_EMPTY = (*_BY_SUFFIX, DCP_SHARD, ".msgpack", ".h5")
# Tokenizers of tens of megabytes are beside the weights; parsing them would cost more than it proves.
_MAX_JSON_IN_TREE_BYTES = 1_000_000


def tree_fault(entry: Entry) -> Optional[str]:
    """Return what is wrong with any file or set of files below a directory, or `None`."""
    return next(_faults(entry), None)


def tree_gap(entry: Entry) -> Optional[str]:
    """Return all files that are missing below a directory as one `Gap`, or what else is wrong, or `None`."""
    gaps: List[Gap] = []
    for fault in _faults(entry):
        if not isinstance(fault, Gap):
            return fault
        gaps.append(fault)
    return Gap(gaps[0], (name for gap in gaps for name in gap.names)) if gaps else None


def _faults(entry: Entry) -> Iterator[str]:
    for directory, all_bases in entry.by_directory().items():
        prefix = f"{directory}/" if directory else ""
        bases = [base for base in all_bases if not is_temporary_inside(base)]
        for base in bases:
            fault = _file_fault(entry, prefix + base)
            if fault:
                yield f"{prefix}{base}: {fault}"
        yield from _set_faults(entry, directory, bases)


def _file_fault(entry: Entry, name: str) -> Optional[str]:
    size = entry.files[name].size
    if size == 0:
        return "it is empty" if name.endswith(_NEVER_EMPTY) else None
    check = _BY_SUFFIX.get("." + name.rpartition(".")[2])
    if check is None or (check is json_file and size > _MAX_JSON_IN_TREE_BYTES):
        return None
    with entry.open(name) as (file, _):
        verdict = check(file, size)
    return verdict.reason if verdict.complete is False else None


def _set_faults(entry: Entry, directory: str, bases: List[str]) -> Iterator[str]:
    faults = [numbered_fault(entry, directory, bases)]
    if any(base.endswith(DCP_SHARD) for base in bases):
        faults.append(dcp_fault(entry, directory, bases))
    if is_deepspeed(bases):
        faults.append(deepspeed_fault(entry, directory, bases))
    yield from filter(None, faults)


def index_fault(entry: Entry) -> Optional[str]:
    """Return which shard that a weight index names is missing (`model.safetensors.index.json`)."""
    for name in sorted(entry.files):
        if not name.endswith(".index.json"):
            continue
        index = document(entry, name)
        shards = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(shards, dict):
            return f"{name} is cut off or has no weight_map"
        prefix = name[: name.rfind("/") + 1]
        missing = sorted({f"{prefix}{shard}" for shard in shards.values()} - set(entry.files))
        if missing:
            return Gap(f"{missing[0]} is named in {name} and missing", missing)
    return None
