"""The registry of layouts: how each is recognised, and what proves it complete.

A new layout is one check here and one line in `LAYOUTS`. A check gets an `Entry`, may open its files
(an OSError means that the entry is looked at again later), never loads weights and never unpickles.
`auto` takes the first layout in the registry's order that claims an entry, so what proves itself
comes before `directory` and `file`, which only time can prove.
"""

from __future__ import annotations

import os
import re
from typing import Callable, Dict, NamedTuple

from prefect_ft.worker.checkpoints import manifest, trackers
from prefect_ft.worker.checkpoints.entry import (
    CLOCK_SKEW_NS,
    COMPLETE,
    UNMARKED,
    Entry,
    Gap,
    Readable,
    Verdict,
    read_at,
)
from prefect_ft.worker.checkpoints.formats import (
    FileCheck,
    document,
    json_file,
    safetensors,
    torch_file,
    zip_file,
)
from prefect_ft.worker.checkpoints.names import UsualNames, is_temporary_inside
from prefect_ft.worker.checkpoints.ocdbt import orbax_fault
from prefect_ft.worker.checkpoints.shards import DCP_METADATA, DCP_SHARD, is_deepspeed
from prefect_ft.worker.checkpoints.trackers import ITERATION, LATEST
from prefect_ft.worker.checkpoints.trees import index_fault, tree_fault
from prefect_ft.worker.checkpoints.zips import begins_like_zip

HF_STATE = "trainer_state.json"
ORBAX_METADATA = "_CHECKPOINT_METADATA"
NO_FILES = "it holds no files"

_HF_WEIGHTS = re.compile(
    r"(?:.*/)?[^/]*(?:model|adapter)[^/]*\.(?:bin|pt|msgpack|h5)|.*\.(?:safetensors|distcp)"
)


class Layout(NamedTuple):
    """How `auto` recognises a layout, and what proves it complete."""

    claims: Callable[[Entry], bool]
    check: Callable[[Entry], Verdict]


def _hf(entry: Entry) -> Verdict:
    """A checkpoint of the transformers Trainer: `trainer_state.json`, which it writes after the weights.

    Its `global_step` is the step in the name, if that is no date; shards of a weight index are all there. Source:
    `_save_checkpoint` in src/transformers/trainer.py.
    """
    if HF_STATE not in entry.files:
        return Verdict(False, f"{HF_STATE} is missing: it is written after the weights")
    state = document(entry, HF_STATE)
    step = state.get("global_step") if isinstance(state, dict) else None
    if step is None:
        return Verdict(False, f"{HF_STATE} is cut off or has no global_step")
    if entry.step not in (None, step) and not UsualNames().is_dated(entry.name):
        return Verdict(False, f"{HF_STATE} is of step {step}, the name of step {entry.step}")
    if not any(_HF_WEIGHTS.fullmatch(name) for name in entry.files):
        return Verdict(False, "no weights")
    fault = tree_fault(entry) or index_fault(entry)
    return Verdict(False, fault) if fault else vouched(entry, HF_STATE)


def _deepspeed(entry: Entry) -> Verdict:
    """A tag's directory of DeepSpeed, or one that holds such a directory and its `latest`.

    Complete when no shard is missing or cut off and `latest`, which names the last finished one,
    does not name an earlier one. Source: see `deepspeed_fault`.
    """
    tags = [directory for directory, bases in entry.by_directory().items() if is_deepspeed(bases)]
    if not tags:
        return Verdict(False, "no model_states or optim_states of DeepSpeed")
    if "" not in tags:
        state = entry.files.get(LATEST)
        latest = trackers.read(os.path.join(entry.path, LATEST), state, entry.place) if state else None
        if latest is None or latest.text not in tags:
            return Verdict(
                False, f"{LATEST} is missing or names no directory that is there: it is written last"
            )
    fault = tree_fault(entry)
    if fault:
        return Verdict(False, fault)
    return (entry.latest or UNMARKED) if "" in tags else vouched(entry, LATEST)


def _megatron(entry: Entry) -> Verdict:
    """A Megatron-LM iteration (`iter_0000100/`), which `latest_checkpointed_iteration.txt` has reached.

    The tracker is written when all ranks are done. Source: `save_checkpoint` in
    megatron/training/checkpointing.py.
    """
    if entry.iteration is None:
        return Verdict(False, Gap(f"{ITERATION} is missing: it is written last", [ITERATION]))
    if not entry.size:
        return Verdict(False, NO_FILES)
    fault = None if entry.iteration.complete is False else tree_fault(entry)
    return Verdict(False, fault) if fault else entry.iteration


def _orbax(entry: Entry) -> Verdict:
    """A step of orbax: a directory moved into place whole, with the time of its commit inside.

    Source: "Checkpoint Format Guide" and "Atomicity" in orbax.readthedocs.io.
    """
    metadata = document(entry, ORBAX_METADATA) if ORBAX_METADATA in entry.files else None
    if not isinstance(metadata, dict):
        return Verdict(False, f"{ORBAX_METADATA} is missing or cut off")
    if not metadata.get("commit_timestamp_nsecs", True):
        return Verdict(False, "it was never committed")
    fault = tree_fault(entry) or orbax_fault(entry)
    if fault:
        return Verdict(False, fault)
    return vouched(entry, ORBAX_METADATA) if "commit_timestamp_nsecs" in metadata else UNMARKED


def _dcp(entry: Entry) -> Verdict:
    """A directory of torch.distributed.checkpoint: `.metadata` and shards. Source: see `dcp_fault`."""
    if not any(base.endswith(DCP_SHARD) for base in entry.by_directory().get("", [])):
        return Verdict(False, f"no {DCP_SHARD} file")
    fault = tree_fault(entry)
    return Verdict(False, fault) if fault else vouched(entry, DCP_METADATA)


def _lightning(entry: Entry) -> Verdict:
    """A Lightning checkpoint: a torch file, or a directory where a strategy shards it.

    Directories are those of FSDP (`meta.pt` beside torch.distributed.checkpoint, written last) and of
    DeepSpeed. Source: src/lightning/pytorch/strategies/fsdp.py and deepspeed.py.
    """
    if not entry.is_directory:
        return _single(torch_file)(entry)
    if LATEST in entry.files:
        return _deepspeed(entry)
    return (
        _dcp(entry) if "meta.pt" in entry.files else Verdict(False, "meta.pt is missing: it is written last")
    )


def _directory(entry: Entry) -> Verdict:
    """Any other directory: no file in it is cut off or temporary; only time shows whether one is missing."""
    temporary = [name for name in entry.files if is_temporary_inside(name.rpartition("/")[2])]
    if temporary:
        return Verdict(False, f"{min(temporary)} is a temporary file: it is being written or was left behind")
    fault = NO_FILES if not entry.size else tree_fault(entry)
    return Verdict(False, fault) if fault else UNMARKED


def _tree(check: Callable[[Entry], Verdict]) -> Callable[[Entry], Verdict]:
    """Apply a check of directories to an entry that may be a file."""
    return lambda entry: (
        check(entry) if entry.is_directory else Verdict(False, "it is a file, not a directory")
    )


def _single(check: FileCheck) -> Callable[[Entry], Verdict]:
    """Apply the check of a file format to an entry that is one file."""

    def check_entry(entry: Entry) -> Verdict:
        if entry.is_directory:
            return Verdict(False, "it is a directory, not a file")
        if entry.size == 0:
            return Verdict(False, "it is empty")
        with entry.open() as (file, size):
            return check(file, size)

    return check_entry


def _any_file(file: Readable, size: int) -> Verdict:
    """A file without a format that proves itself."""
    del file, size
    return UNMARKED


def _ends(*suffixes: str) -> Callable[[Entry], bool]:
    return lambda entry: not entry.is_directory and entry.name.lower().endswith(suffixes)


def _begins_like_zip(entry: Entry) -> bool:
    if entry.is_directory:
        return False
    with entry.open() as (file, _):
        return begins_like_zip(read_at(file, 4, 0))


def _claims_lightning(entry: Entry) -> bool:
    if not re.search(r"(?:epoch|step)=.*\.ckpt$", entry.name):
        return False
    names = ("meta.pt", LATEST, DCP_METADATA)
    return any(name in entry.files for name in names) if entry.is_directory else _begins_like_zip(entry)


def _claims_hf(entry: Entry) -> bool:
    # Configurations come before the weights and training_args.bin after them: a save is under way.
    begun = bool(entry.files) and entry.files.keys() <= {"config.json", "generation_config.json"}
    return HF_STATE in entry.files or "training_args.bin" in entry.files or begun


def _claims_megatron(entry: Entry) -> bool:
    if not (entry.is_directory and re.fullmatch(r"iter_[0-9]+", entry.name)):
        return False
    tops = {name.partition("/")[0] for name in entry.files}
    return (
        entry.iteration is not None or "common.pt" in tops or any(top.startswith("mp_rank_") for top in tops)
    )


def _claims_dcp(entry: Entry) -> bool:
    top = entry.by_directory().get("", []) if entry.is_directory else []
    return DCP_METADATA in top or any(base.endswith(DCP_SHARD) for base in top)


def _claims_deepspeed(entry: Entry) -> bool:
    return entry.is_directory and any(is_deepspeed(bases) for bases in entry.by_directory().values())


def vouched(entry: Entry, marker: str) -> Verdict:
    """A marker proves what was there when it was written; for later files, only time can."""
    if entry.mtime_ns > entry.files[marker].mtime_ns + CLOCK_SKEW_NS:
        return Verdict(None, f"it was written to after {marker}", entry.files[marker].mtime_ns)
    return COMPLETE


LAYOUTS: Dict[str, Layout] = {
    "manifest": Layout(manifest.claims, manifest.check),
    "hf": Layout(_claims_hf, _tree(_hf)),
    "lightning": Layout(_claims_lightning, _lightning),
    "deepspeed": Layout(_claims_deepspeed, _tree(_deepspeed)),
    "megatron": Layout(_claims_megatron, _tree(_megatron)),
    "orbax": Layout(lambda entry: ORBAX_METADATA in entry.files, _tree(_orbax)),
    "dcp": Layout(_claims_dcp, _tree(_dcp)),
    "directory": Layout(lambda entry: entry.is_directory, _tree(_directory)),
    "safetensors": Layout(_ends(".safetensors"), _single(safetensors)),
    "npz": Layout(_ends(".npz"), _single(zip_file)),
    "json": Layout(_ends(".json"), _single(json_file)),
    "torch": Layout(_ends(".pt", ".pth", ".ckpt"), _single(torch_file)),
    "zip": Layout(_begins_like_zip, _single(zip_file)),
    "file": Layout(lambda entry: not entry.is_directory, _single(_any_file)),
}
