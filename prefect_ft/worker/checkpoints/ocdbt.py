"""What is wrong with the files of an orbax checkpoint, without a decoder: by the lengths that they contain.

TensorStore writes arrays into OCDBT databases: manifests and nodes begin with a magic number and their own length,
values are mostly frames of Zstandard, whose blocks have theirs. Source: "OCDBT storage format" in
google.github.io/tensorstore, and RFC 8878 (Zstandard), sections 3.1.1.1 and 3.1.1.2.
"""

from __future__ import annotations

from typing import Optional

from prefect_ft.worker.checkpoints.entry import Entry, Readable, read_at
from prefect_ft.worker.checkpoints.formats import json_file

_MANIFEST = b"\x0c\xdb\x3a\x2a"
_NODES = (_MANIFEST, b"\x0c\xdb\x20\xde", b"\x0c\xdb\x12\x34")
_ZSTD = b"\x28\xb5\x2f\xfd"
_JSON = ("_METADATA", "_sharding", ".zarray", ".zattrs", ".zgroup", "zarr.json")
_MAX_FRAMES = 10_000


def orbax_fault(entry: Entry) -> Optional[str]:
    """Return which file of an orbax checkpoint is cut off, or `None`; may raise OSError."""
    for name in sorted(entry.files):
        fault = _fault(entry, name)
        if fault:
            return f"{name}: {fault}"
    return None


def _fault(entry: Entry, name: str) -> Optional[str]:
    directory, _, base = name.rpartition("/")
    is_json = base in _JSON or directory.endswith("array_metadatas")
    is_ocdbt = base == "manifest.ocdbt" or directory.rpartition("/")[2] == "d"
    if not (is_json or is_ocdbt):
        return None
    with entry.open(name) as (file, size):
        if is_json:
            verdict = json_file(file, size)
            return verdict.reason if verdict.complete is False else None
        return _length_fault(file, size)


def _length_fault(file: Readable, size: int) -> Optional[str]:
    head = read_at(file, 12, 0)
    if any(magic.startswith(head) for magic in (*_NODES, _ZSTD)):
        return f"cut off after {size} bytes"
    if head[:4] in _NODES:
        expected = int.from_bytes(head[4:12], "little")
        return f"cut off at {size} of {expected} bytes" if len(head) < 12 or expected > size else None
    return _zstd_fault(file, size) if head[:4] == _ZSTD else None


def _zstd_fault(file: Readable, size: int) -> Optional[str]:
    """Step over the frames at the beginning of a file; what follows the last one may be anything."""
    place = 0
    for _ in range(_MAX_FRAMES):
        if place == size or read_at(file, 4, place) != _ZSTD:
            return None
        end = _end_of_frame(file, place)
        if end is None or end > size:
            return f"a compressed array is cut off at {size} bytes"
        place = end
    return None


def _end_of_frame(file: Readable, place: int) -> Optional[int]:
    """Return the end of the Zstandard frame that begins at `place`; `None`: the file ends before."""
    flags = read_at(file, 1, place + 4)
    if not flags:
        return None
    is_single = flags[0] >> 5 & 1
    content = (1 if is_single else 0, 2, 4, 8)[flags[0] >> 6]
    place += 5 + (0 if is_single else 1) + (0, 1, 2, 4)[flags[0] & 3] + content
    while True:
        head = read_at(file, 3, place)
        if len(head) < 3:
            return None
        block = int.from_bytes(head, "little")
        place += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
        if block & 1:
            return place + (4 if flags[0] >> 2 & 1 else 0)
