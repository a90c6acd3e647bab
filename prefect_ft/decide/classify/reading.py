"""What a traceback was reading when it ended: a sample, a checkpoint's file, the state that a run resumes from.

Owns the table of frames that show that. `unreadable` classifies exceptions from there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from prefect_ft.signatures import compiled

__all__ = ["Reading", "is_library", "reading_after"]

Reading = Literal["", "sample", "file", "state"]
"""`sample`: a data loader fetches. `file`: a library reads a checkpoint, and nothing of the user's is called
from there. `state`: a function named like the loading of a state, or one that reads any file.
Empty: none of these."""

# RE2: names in a log may be anything, and these have nested repetitions.
_SAMPLE = compiled(
    r"(?:^|/)(?:torch/utils/data/|torchdata/|datasets/(?:arrow_dataset|iterable_dataset)\.py|webdataset/|"
    r"streaming/base/|litdata/|tensorflow/python/data/|grain/|nvidia/dali/|ray/data/|"
    r"paddle/(?:io|fluid)/dataloader/|mindspore/dataset/|mxnet/gluon/data/|tensorpack/dataflow/|ffcv/|squirrel/)"
)
_OWN_SAMPLE = compiled(
    r"^(?:__getitems?__|collate\w*|\w*_collate(?:_fn)?|_?(?:load|read|get|decode|parse|open)_?(?:image|img|sample|audio|wav|"
    r"video|frame|record|example|shard)s?(?:_\w+|\d)?)$"
)
"""Functions of the user's own that fetch a sample."""
_FILE = compiled(
    r"(?:^|/)(?:torch/(?:serialization|_weights_only_unpickler|jit/_serialization)\.py|torch/distributed/checkpoint/|"
    r"safetensors/|orbax/|flax/(?:serialization|training/checkpoints)\.py|equinox/_serialisation\.py|"
    r"joblib/numpy_pickle\w*\.py|lightning/fabric/utilities/cloud_io\.py|lightning_fabric/utilities/cloud_io\.py|"
    r"transformers/(?:modeling_utils|modeling_\w+_utils|trainer_callback|trainer_pt_utils|core_model_loading|"
    r"configuration_utils|utils/hub)\.py|xgboost/core\.py|catboost/core\.py|keras/(?:src/)?saving/|"
    r"tensorflow/python/(?:checkpoint|saved_model|training)/|"
    r"deepspeed/(?:runtime/)?(?:checkpoint_engine/|state_dict_factory\.py)|megatron/core/dist_checkpointing/|"
    r"mmengine/runner/checkpoint\.py)"
)
_READS = compiled(
    r"^(?:\w*_)?(?:load|restore|read|deseriali[sz]e|unpickle|from_bytes)(?:_\w*)?$|^_?(?:load|read|restore)\w+$|"
    r"^_open_zipfile_reader$|^get_checkpoint_shard_files$|^get_sd_loader\w*$|^\w*from_json_file$"
)
_STATE = compiled(
    r"^(?:\w*_)?(?:load|restore|resume|recover|read|deseriali[sz]e|unpickle)_?(?:\w*_)?"
    r"(?:check_?points?|ckpts?|states?|snapshots?|weights|params|models?|optimizer|scheduler|scaler|rng|training|"
    r"run|trainer|pretrained|pickle)(?:_\w+)?$|"
    r"^_?(?:resume|restore|unpickle)(?:_\w+)?$|^_?(?:maybe|try|auto)_(?:resume|restore|load)\w*$"
)
_FILE_OF_ANY_KIND = compiled(
    r"/(?:json/(?:__init__|decoder)|pickle|gzip|bz2|lzma|zipfile(?:/__init__)?|tarfile|numpy/lib/_?(?:npyio|format)\w*|"
    r"h5py/_hl/files|yaml/(?:__init__|reader|scanner|parser)|zstandard/\w+)\.py$"
)
_LIBRARY = compiled(
    r"(?:^|/)(?:site|dist)-packages/|/lib/python\d|^<|\.pyx$|"
    r"^[A-Za-z]:/(?:.*/)?(?:[\w.-]*(?i:python|conda|forge)[\w.-]*|envs/[^/]+)/(?i:lib)/"  # Windows
)
_APPLIES = compiled(
    r"(?:^|/)(?:torch/(?:nn|optim|amp)/|optax/|keras/(?:src/)?(?:optimizers|layers|models)/)\S* |"
    r"(?:^|/)flax/serialization\.py (?:\w*from_state_dict|_restore_(?:dict|list|namedtuple))$"
)
"""Where what has been read is put into a model, by file and function: what fails there is not the file."""


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Return whether a frame's file is not the user's own."""
    return _LIBRARY.search(file) is not None


def reading_after(reading: Reading, file: str, function: str) -> Reading:
    """Return what is being read in a frame, given what its caller's frame was reading."""
    if reading == "sample":
        return reading
    kind, is_foreign = _kind_of(file, function)
    if kind in ("sample", "file"):
        return kind
    if kind == "applied":
        return ""
    if reading == "file":
        return "file" if is_foreign else "state"  # a class of the user's own takes part
    return reading or ("state" if kind == "state" else "")


@lru_cache(maxsize=4096)
def _kind_of(file: str, function: str) -> tuple[Literal["sample", "file", "state", "applied", "other"], bool]:
    """Return what a frame does, and whether it is a library's."""
    is_foreign = is_library(file)
    if _SAMPLE.search(file) or (not is_foreign and _OWN_SAMPLE.search(function)):
        return "sample", is_foreign
    if is_foreign and _APPLIES.search(f"{file} {function}"):
        return "applied", is_foreign
    if _FILE.search(file) and _READS.search(function):
        return "file", is_foreign
    is_state = _STATE.search(function) or _FILE_OF_ANY_KIND.search(file)
    return "state" if is_state else "other", is_foreign
