"""Formats of single files that prove themselves: each check takes (file, size in bytes).

Owns what is read of a file and how much of it; knows no names of checkpoints. A check returns a
Verdict and may raise OSError; bytes of any kind end in a Verdict.
"""

from __future__ import annotations

import json
from typing import Callable, List, Optional, Tuple, Union

from prefect_ft.worker.checkpoints.entry import COMPLETE, UNMARKED, Entry, Readable, Verdict, read_at
from prefect_ft.worker.checkpoints.zips import begins_like_zip, central_directory

MAX_JSON_BYTES = 64_000_000
MAX_SAFETENSORS_HEADER_BYTES = 100_000_000

FileCheck = Callable[[Readable, int], Verdict]

_PICKLE_FRAME = 0x95
_PICKLE_STOP = b"."
# Opcodes whose argument may be outside any frame, with the size of the length before it.
_PICKLE_LARGE = {ord("X"): 4, ord("B"): 4, 0x8D: 8, 0x8E: 8, 0x96: 8}


def zip_file(file: Readable, size: int) -> Verdict:
    """A zip with its end record and central directory: numpy's .npz, Keras' .keras."""
    found = central_directory(file, size)
    return Verdict(False, found) if isinstance(found, str) else COMPLETE


def zip_or_unmarked(file: Readable, size: int) -> Verdict:
    """A zip as above, or bytes of any other kind."""
    return zip_file(file, size) if begins_like_zip(read_at(file, 4, 0)) else UNMARKED


def torch_file(file: Readable, size: int) -> Verdict:
    """The zip that torch.save has written since 1.6; older files are a row of pickles without an end mark."""
    # Blocks that were allocated and never written, as a power loss leaves them.
    if not any(read_at(file, 16, 0)):
        return Verdict(False, "it begins with zeros: it was never written")
    return zip_or_unmarked(file, size)


def _cut_off(size: int, expected: Optional[int] = None) -> str:
    return f"cut off after {size} bytes" if expected is None else f"cut off at {size} of {expected} bytes"


def safetensors(file: Readable, size: int) -> Verdict:
    """Header length, JSON header, and tensors without a gap up to the end (safetensors README, Format)."""
    length = int.from_bytes(read_at(file, 8, 0), "little")
    if size < 8 or 8 + length > size:
        return Verdict(False, f"header missing: {_cut_off(size, 8 + length if size >= 8 else None)}")
    if length > MAX_SAFETENSORS_HEADER_BYTES:
        return Verdict(False, f"header of {length} bytes is larger than the format allows")
    header = parsed(read_at(file, length, 8))
    spans = _tensor_spans(header) if isinstance(header, dict) else "header is not a JSON object"
    if isinstance(spans, str):
        return Verdict(False, spans)
    place = 0
    for start, end in sorted(spans):
        if start != place or end < start:
            return Verdict(False, f"tensors do not follow each other: one starts at {start}, not at {place}")
        place = end
    total = 8 + length + place
    if size < total:
        return Verdict(False, f"tensors missing: {_cut_off(size, total)}")
    return COMPLETE if size == total else Verdict(False, f"{size - total} bytes follow the last tensor")


def json_file(file: Readable, size: int) -> Verdict:
    """A JSON object or array; other values could be a piece of a longer one."""
    if size > MAX_JSON_BYTES:
        return UNMARKED
    document = parsed(read_at(file, size, 0))
    return (
        COMPLETE if isinstance(document, (dict, list)) else Verdict(False, f"no whole JSON in {size} bytes")
    )


def pickle_file(file: Readable, size: int) -> Verdict:
    """The frames of a pickle (protocol 4 and newer, PEP 3154), stepped over without looking inside."""
    head = read_at(file, 2, 0)
    if head == b"\x80":
        return Verdict(False, f"pickle {_cut_off(size)}")
    if len(head) < 2 or head[0] != 0x80 or head[1] < 4:
        return UNMARKED
    place = 2
    while place < size:
        opcode = read_at(file, 9, place) or _PICKLE_STOP
        if opcode[0] == _PICKLE_FRAME:
            place += 9 + int.from_bytes(opcode[1:9], "little")
        elif opcode[0] in _PICKLE_LARGE:
            width = _PICKLE_LARGE[opcode[0]]
            place += 1 + width + int.from_bytes(opcode[1 : 1 + width], "little")
        elif size - place < 4:
            # The pickler puts no frame around fewer than four bytes.
            place = size
        else:
            return UNMARKED
    if place == size and read_at(file, 1, size - 1) == _PICKLE_STOP:
        return COMPLETE
    return Verdict(False, f"pickle {_cut_off(size, place if place > size else None)}")


def parsed(raw: bytes) -> object:
    """Return a JSON document; `None` if the bytes are not one."""
    try:
        document: object = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return document


def document(entry: Entry, name: str) -> object:
    """Return the JSON document in one of an entry's files; `None` if it is invalid or too large."""
    if entry.files[name].size > MAX_JSON_BYTES:
        return None
    with entry.open(name) as (file, size):
        return parsed(read_at(file, size, 0))


def _tensor_spans(header: object) -> Union[List[Tuple[int, int]], str]:
    """Return the data offsets of all tensors, or what is wrong with the header."""
    assert isinstance(header, dict)
    spans: List[Tuple[int, int]] = []
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        if not (isinstance(offsets, list) and [type(offset) for offset in offsets] == [int, int]):
            return f"header gives no data_offsets for {name!r}"
        spans.append((offsets[0], offsets[1]))
    return spans
