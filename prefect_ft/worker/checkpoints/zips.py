"""The end of a zip file: a file whose central directory is whole was written to its end.

Reads the end record and the central directory, and a member's bytes only on request.
Source: APPNOTE.TXT of PKWARE, sections 4.3.12 to 4.3.16. Stricter than other readers: the end record
must be the end of the file and the directory must be right before it, so neither a truncated file nor a
zip stored inside passes.
"""

from __future__ import annotations

import struct
from typing import List, NamedTuple, Optional, Tuple, Union

from prefect_ft.worker.checkpoints.entry import Readable, read_at

MAX_DIRECTORY_BYTES = 64_000_000

_MAGIC = b"PK\x03\x04"
_MAX_COMMENT = 0xFFFF
_IN_ZIP64 = 0xFFFFFFFF
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ITEM = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")


class Member(NamedTuple):
    """One stored file: the place of its local header, its bytes in the zip, whether they are compressed."""

    name: bytes
    offset: int
    size: int
    compressed: bool


class _Span(NamedTuple):
    start: int
    end: int
    members: int


def begins_like_zip(head: bytes) -> bool:
    """Return whether a file's first bytes are those of a zip, also if there are fewer than four yet."""
    return bool(head) and head[:4] == _MAGIC[: len(head)]


def central_directory(file: Readable, size: int) -> Union[List[Member], str]:
    """Return the members of a whole zip, or what is wrong with it."""
    span = _directory_span(file, size)
    if isinstance(span, str):
        return span
    if span.end - span.start > MAX_DIRECTORY_BYTES:
        return f"central directory of {span.end - span.start} bytes is larger than any real one"
    members = _members(read_at(file, span.end - span.start, span.start))
    if members is None or len(members) != span.members:
        return "central directory is damaged"
    place = 0
    for member in sorted(members, key=lambda member: member.offset):
        if member.offset < place or (member.offset and not place):
            return "central directory names members that overlap or leave out the first"
        place = member.offset + _LOCAL.size + len(member.name) + member.size
    return members if place <= span.start else "central directory names members beyond the end"


def stored_bytes(file: Readable, member: Member, limit: int) -> Optional[bytes]:
    """Return a member's bytes; `None` if they are compressed or more than `limit`."""
    if member.compressed or member.size > limit:
        return None
    header = read_at(file, _LOCAL.size, member.offset)
    if len(header) < _LOCAL.size:
        return None
    name_length, extra_length = _LOCAL.unpack(header)[-2:]
    return read_at(file, member.size, member.offset + _LOCAL.size + name_length + extra_length)


def _directory_span(file: Readable, size: int) -> Union[_Span, str]:
    """Find the directory by the end record, or return why there is none."""
    window = min(size, _END.size + _MAX_COMMENT)
    tail = read_at(file, window, size - window)
    place = _end_record(tail)
    if place is None:
        return f"central directory missing: cut off after {size} bytes"
    end = size - len(tail) + place
    members, length, start = _END.unpack_from(tail, place)[4:7]
    locator = read_at(file, _LOCATOR.size, end - _LOCATOR.size) if end >= _LOCATOR.size else b""
    if len(locator) == _LOCATOR.size and locator[:4] == b"PK\x06\x07":
        end = min(_LOCATOR.unpack(locator)[2], size)
        record = read_at(file, _END64.size, end)
        if len(record) < _END64.size or record[:4] != b"PK\x06\x06":
            return "zip64 end record is damaged"
        members, length, start = _END64.unpack(record)[7:10]
    if start + length != end:
        return "central directory is not where the end record says"
    return _Span(start, end, members)


def _end_record(tail: bytes) -> Optional[int]:
    """Return the place of the end record whose comment ends with the file."""
    place = len(tail) - _END.size
    while place >= 0:
        place = tail.rfind(b"PK\x05\x06", 0, place + 4)
        if place >= 0 and place + _END.size + _END.unpack_from(tail, place)[7] == len(tail):
            return place
        place -= 1
    return None


def _members(directory: bytes) -> Optional[List[Member]]:
    """Read all items of a central directory; `None` if they do not fill it exactly."""
    found: List[Member] = []
    place = 0
    while place + _ITEM.size <= len(directory):
        item = _ITEM.unpack_from(directory, place)
        name_length, extra_length, comment_length = item[10:13]
        name_end = place + _ITEM.size + name_length
        extra = directory[name_end : name_end + extra_length]
        place = name_end + extra_length + comment_length
        sizes = _wide(extra, (item[9], item[8], item[16])) if item[0] == b"PK\x01\x02" else None
        if sizes is None or place > len(directory):
            return None
        name = directory[name_end - name_length : name_end]
        found.append(Member(name, offset=sizes[2], size=sizes[1], compressed=item[4] != 0))
    return found if place == len(directory) else None


def _wide(extra: bytes, narrow: Tuple[int, int, int]) -> Optional[List[int]]:
    """Replace the numbers that the zip64 extra field has, in its order: raw size, size, offset."""
    missing = narrow.count(_IN_ZIP64)
    if not missing:
        return list(narrow)
    place = 0
    while place + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, place)
        if kind == 1 and length >= 8 * missing and place + 4 + length <= len(extra):
            numbers = iter(struct.unpack_from(f"<{missing}Q", extra, place + 4))
            return [next(numbers) if number == _IN_ZIP64 else number for number in narrow]
        place += 4 + length
    return None
