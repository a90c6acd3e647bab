"""Sets of files that are a checkpoint only together: what is missing from one, as far as that can be known.

Each function takes an entry and one directory of its tree and returns what is wrong, or `None`.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from prefect_ft.worker.checkpoints.entry import Entry, Gap, read_at
from prefect_ft.worker.checkpoints.formats import pickle_file
from prefect_ft.worker.checkpoints.zips import central_directory, stored_bytes

DCP_METADATA = ".metadata"
DCP_SHARD = ".distcp"

_MAX_SEARCHED_BYTES = 64_000_000
_NAMED_SHARD = re.compile(rb"__[0-9]+_[0-9]+\.distcp")
_NUMBERED = re.compile(r"(?P<set>.*?)(?P<number>[0-9]+)-of-(?P<total>[0-9]+)(?P<rest>.*)")
_MODEL = re.compile(r"mp_rank_(?P<mp>[0-9]+)_model_states\.pt")
_ZERO = re.compile(
    r"(?:bf16_)?zero_pp_rank_(?P<dp>[0-9]+)_mp_rank_(?P<mp>[0-9]+)_?(?P<kind>model|optim)_states\.pt"
)
_MAX_RANKS = 1_000_000


def is_deepspeed(bases: List[str]) -> bool:
    """Return whether a directory with these names holds the shards of a DeepSpeed checkpoint."""
    return any(_MODEL.fullmatch(base) or _ZERO.fullmatch(base) for base in bases)


def dcp_fault(entry: Entry, directory: str, bases: List[str]) -> Optional[str]:
    """Check a directory of torch.distributed.checkpoint: `.metadata`, and every shard that it names.

    The coordinator writes `.metadata` when all ranks have written their shards (`finish` in
    torch/distributed/checkpoint/filesystem.py). It is a pickle: its bytes are searched for the
    shards' names, never loaded.
    """
    shards = [base for base in bases if base.endswith(DCP_SHARD)]
    if DCP_METADATA not in bases:
        name = f"{_place(directory)}{DCP_METADATA}"
        return Gap(f"{name} is missing: it is written last", [name])
    metadata = _place(directory) + DCP_METADATA
    if entry.files[metadata].size == 0:
        return f"{metadata} is empty"
    with entry.open(metadata) as (file, size):
        verdict = pickle_file(file, size)
        raw = read_at(file, min(size, _MAX_SEARCHED_BYTES), 0)
    if verdict.complete is False:
        return f"{metadata}: {verdict.reason}"
    missing = {name.decode() for name in _NAMED_SHARD.findall(raw)} - set(shards)
    if missing:
        text = (
            f"{_place(directory)}{min(missing)} is missing ({len(missing)} of {len(missing) + len(shards)})"
        )
        return Gap(text, (_place(directory) + name for name in missing))
    return None


def deepspeed_fault(entry: Entry, directory: str, bases: List[str]) -> Optional[str]:
    """Check that a DeepSpeed directory has the shards of all ranks up to the highest it knows of.

    Names: `_get_ckpt_name` and `_get_zero_ckpt_name` in deepspeed/runtime/engine.py, which stores
    `dp_world_size` and `mp_world_size` with the model states. They are looked up in the pickle's
    bytes, because rank 0 may write `latest` before other ranks have begun with their shards.
    """
    kinds: Dict[str, Set[Tuple[int, int]]] = {}
    sources: List[str] = []
    for base in bases:
        shard = _deepspeed_shard(base)
        if shard is None:
            continue
        kinds.setdefault(shard.kind, set()).add((shard.dp, shard.mp))
        if "optim" not in shard.kind:
            sources.append(base)
    dp_size, mp_size = _world_sizes(entry, _place(directory) + sources[0]) if sources else (0, 0)
    for kind, seen in sorted(kinds.items()):
        dp = 1 if kind == "model" else max(dp_size, 1 + max(rank for rank, _ in seen))
        mp = max(mp_size, 1 + max(rank for _, rank in seen))
        if len(seen) < dp * mp:
            text = f"{dp * mp - len(seen)} of {dp * mp} {kind} shards are missing"
            missing = {(dp_rank, mp_rank) for dp_rank in range(dp) for mp_rank in range(mp)} - seen
            return Gap(text, (_place(directory) + DeepSpeedShard(kind, *each).label for each in missing))
    return None


def numbered_fault(entry: Entry, directory: str, bases: List[str]) -> Optional[str]:
    """Check that all files named NAME-00001-of-00004 (transformers, TensorFlow) of each set exist."""
    del entry
    sets: Dict[Tuple[str, str, str], Set[int]] = {}
    for base in bases:
        match = _NUMBERED.fullmatch(base)
        if match:
            key = (match["set"], match["total"], match["rest"])
            sets.setdefault(key, set()).add(int(match["number"]))
    for (name, total, rest), numbers in sorted(sets.items()):
        if len(numbers) < int(total):
            lacking = int(total) - len(numbers)
            text = f"{lacking} of {int(total)} files {_place(directory)}{name}…-of-{total}{rest} are missing"
            return Gap(text, _numbered(f"{_place(directory)}{name}", total, rest, numbers))
    return None


def shard_labels(names: Iterable[str]) -> Iterator[str]:
    """Yield labels of the DeepSpeed shards among these files, as used for missing ones."""
    for name in names:
        directory, _, base = name.rpartition("/")
        shard = _deepspeed_shard(base)
        if shard is not None:
            yield _place(directory) + shard.label


def is_of_a_set(name: str) -> bool:
    """Return whether a file belongs to a set of files that are a checkpoint only together."""
    base = name.rpartition("/")[2]
    return base == DCP_METADATA or base.endswith(DCP_SHARD) or _NUMBERED.fullmatch(base) is not None


class DeepSpeedShard(NamedTuple):
    """What one file of DeepSpeed holds: of which kind, of which data and model parallel rank."""

    kind: str
    dp: int
    mp: int

    @property
    def label(self) -> str:
        return f"{self.kind} shard {self.dp}/{self.mp}"


def _deepspeed_shard(base: str) -> Optional[DeepSpeedShard]:
    match = _ZERO.fullmatch(base) or _MODEL.fullmatch(base)
    if not match:
        return None
    parts = match.groupdict()
    kind = f"ZeRO {parts['kind']}" if "dp" in parts else "model"
    return DeepSpeedShard(kind, int(parts.get("dp", 0)), int(parts["mp"]))


def _numbered(name: str, total: str, rest: str, seen: Set[int]) -> Iterator[str]:
    """Yield the missing names of a numbered set, which begins with 0 or with 1."""
    first = 0 if 0 in seen else 1
    for number in range(first, first + int(total)):
        if number not in seen:
            yield f"{name}{number:0{len(total)}}-of-{total}{rest}"


def _world_sizes(entry: Entry, name: str) -> Tuple[int, int]:
    """Return the numbers of data and model parallel ranks in a file of model states; 0: not given."""
    with entry.open(name) as (file, size):
        members = central_directory(file, size)
        if isinstance(members, str):
            return 0, 0
        pickled = next((member for member in members if member.name.endswith(b"data.pkl")), None)
        raw = stored_bytes(file, pickled, _MAX_SEARCHED_BYTES) if pickled else None
    return _number_after(b"dp_world_size", raw or b""), _number_after(b"mp_world_size", raw or b"")


def _number_after(key: bytes, raw: bytes) -> int:
    """Return the small integer that a pickled dict has under a key of 13 bytes; 0: none is found."""
    match = re.search(
        rb"(?:X\x0d\0\0\0|\x8c\x0d)" + key + rb"(?:q.|r.{4}|\x94)(?:K(.)|M(..)|J(.{4}))", raw, re.DOTALL
    )
    if not match:
        return 0
    number = int.from_bytes(next(group for group in match.groups() if group is not None), "little")
    return number if number <= _MAX_RANKS else 0


def _place(directory: str) -> str:
    return f"{directory}/" if directory else ""
