"""The class of an exception that ended the reading of a checkpoint, whatever its message says.

Owns which of the catalogue's answers are general enough to be corrected by what the traceback was reading.
A message that names another cause (a full disk, a missing module, different shapes) is not corrected.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from prefect_ft.signatures import Signature

if TYPE_CHECKING:
    from prefect_ft.decide.classify.findings import Finding
    from prefect_ft.decide.classify.tracebacks import Raised

__all__ = ["OF_PEERS", "UNREADABLE", "Resumption", "as_read", "as_resumed"]

UNREADABLE = Signature(
    id="checkpoint-unreadable",
    failure_class="checkpoint",
    pattern="Error",
    hint="The checkpoint or weights file cannot be read; resume from another one.",
)
"""An exception that ended the reading of a checkpoint, and does not itself say why."""

SAMPLE_UNREADABLE = Signature(
    id="sample-unreadable",
    failure_class="data",
    pattern="Error",
    hint="A sample of the data set cannot be read; look at the file that the data loader fetched.",
)
"""The finding for a checkpoint's file that a data loader read."""


class Resumption(NamedTuple):
    """A rank that ended before its first step, in an attempt that resumes from `path`.

    `is_loading`: the rank itself said that it is loading.
    """

    path: str
    is_loading: bool


_OF_FILES = frozenset(
    (
        "boosting-error", "cfg-yaml", "data-json", "data-tar", "data-unicode", "py-arithmetic", "py-eof",
        "py-os-error", "py-pickling", "py-runtime", "py-value", "python-exception", "tf-invalid-argument",
    )
)  # fmt: skip
"""Answers that say no more than that something failed: the cause may be damage."""

_OF_PICKLES = frozenset(
    ("cpp-bad-alloc", "data-collate-size", "py-assertion", "py-index", "py-key", "py-type")
)
"""The same within a library's reader; in a program's own code these are errors of the program."""

_ABSENT = frozenset(("cfg-hf-not-a-model", "path-does-not-exist", "py-file-not-found"))

OF_PEERS = "multiprocessing/connection.py"
"""Where a process connects to another one of its program, by a file that is gone once that one has ended."""

_OF_ARRAYS, _CUT_OFF = re.compile(r"\bnumpy/lib/_?format\w*\.py$"), "cannot reshape array of size "
"""Where NumPy reads a file of an array, and how it says that less is there than the file's head tells."""

_OF_SAMPLES = frozenset(("py-os-error",))

_OF_CONNECTIONS = frozenset(("py-eof",))
"""Answers that a lost peer causes too: more than the stage is needed to blame a file."""

_IS_INCOMPLETE = re.compile(
    r"[Nn]o file named |[Cc]an't find a valid checkpoint at |accessible `\.keras` zip file"
)

_WRITES = re.compile(
    r"(?i)\b(?:unable|failed|cannot|could not)(?: to)? (?:create|save|write)\b|\bfile exists\b|\bwriter? error\b"
)
"""Words about a file that is being written."""

_FILE = re.compile(
    r"[\w./=@+-]{1,400}\.(?:pt|pth|ckpt|bin|safetensors|npz|pkl|pickle|msgpack|h5|hdf5|keras"
    r"|pdparams|pdopt|params|states)(?!\.?\w)"
)
"""A path, or a name, of a file under whose ending frameworks save; `layers.1.weight` is none."""

_NUMBER = re.compile(r"(?<![0-9])(?<!rank)(?<!rank[-_=.])[0-9]+")
"""A number that is not a rank's."""

_ERRNO = re.compile(r"\[Errno (?!22\])\d+\]")
"""An error of the operating system that names the cause; 22 is what PyTorch's reader gets for a truncated file."""


def as_read(signature: Signature, raised: Raised) -> Signature:
    """Correct what the catalogue says of an exception by what was being read when it was raised."""
    is_cut_off = raised.message.startswith(_CUT_OFF) and _OF_ARRAYS.search(raised.file) is not None
    if raised.reading == "sample" and not raised.file.endswith(OF_PEERS):
        is_damage = (
            is_cut_off
            or signature.failure_class == "checkpoint"
            or _may_be_damage(signature, raised, _OF_SAMPLES)
        )
        return SAMPLE_UNREADABLE if is_damage or signature.id in _ABSENT else signature
    if is_cut_off or (
        raised.reading == "file" and _may_be_damage(signature, raised, _OF_FILES | _OF_PICKLES)
    ):
        return UNREADABLE
    return signature


def as_resumed(finding: Finding, resumption: Resumption) -> Finding:
    """Correct a finding by what is known of its rank: that it may have been reading this checkpoint."""
    raised = finding.raised
    if raised is None or raised.reading == "sample":
        return finding
    is_reading = (
        raised.reading == "state"
        or _names(resumption.path, raised.message)
        or _names_sibling(resumption.path, raised.message)
    )
    known = _OF_FILES if is_reading else _OF_FILES - _OF_CONNECTIONS
    is_damage = (is_reading or resumption.is_loading) and _may_be_damage(finding.signature, raised, known)
    if is_damage or _lacks_a_part(finding.signature, raised, resumption.path):
        return replace(finding, signature=UNREADABLE)
    return finding


def _may_be_damage(signature: Signature, raised: Raised, known: frozenset[str]) -> bool:
    other_cause = _ERRNO.search(raised.message) or _WRITES.search(raised.message)
    return signature.id in known and other_cause is None


def _lacks_a_part(signature: Signature, raised: Raised, path: str) -> bool:
    """Return whether a file of the checkpoint is missing, and not the checkpoint as a whole."""
    if signature.id not in _ABSENT:
        return False
    if _names_sibling(path, raised.message):
        return True
    if not _names(path, raised.message):
        return False
    return _names(path, raised.message, and_then="/[^/]") or _IS_INCOMPLETE.search(raised.message) is not None


def _names_sibling(path: str, message: str) -> bool:
    """Return whether a message names another file of the same step in the directory of a checkpoint.

    So it does of `optimizer_4.pt` where `model_4.pt` is resumed from.
    """
    directory, _, name = path.rstrip("/").rpartition("/")
    numbers, parent = _NUMBER.findall(name), directory.rpartition("/")[2]
    if not numbers or "." not in name:
        return False
    for file in _FILE.finditer(message):
        *before, other = file[0].split("/")
        is_there = not before or before[-1] in ("", ".", parent)
        if is_there and other != name and _NUMBER.findall(other) == numbers:
            return True
    return False


def _names(path: str, message: str, *, and_then: str = r"(?![\w=-])") -> bool:
    """Return whether a message names a checkpoint, and then what `and_then` matches."""
    name = path.rstrip("/").rpartition("/")[2]
    before = "/" if name.isdigit() else r"(?<![\w.-])"
    return bool(name) and re.search(rf"{before}{re.escape(name)}{and_then}", message) is not None
