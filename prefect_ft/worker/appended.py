"""Lines by which a rank reports to its agent: a file beside its heartbeat, one JSON object a line.

Owns both sides of such files; what a line means is its writer's. The rank's side runs inside the
user's training: it must not wait there, and imports nothing else of this package.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False  # typing's own would cost its import
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Record = Dict[str, Any]

LINE_BYTES = 4096
"""The longest valid line; an append of at most this size is atomic."""

_VARIABLE = "PREFECT_FT_HEARTBEAT"


def append(suffix: str, record: Record) -> bool:
    """Append a line to the file beside the heartbeat; raises OSError.

    False: no agent has named a heartbeat file, or the line is too long.
    """
    path = os.environ.get(_VARIABLE)
    line = json.dumps(record).encode("ascii") + b"\n"
    if not path or len(line) > LINE_BYTES:
        return False
    fd = os.open(path + suffix, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return os.write(fd, line) == len(line)
    finally:
        os.close(fd)


class Lines:
    """The lines of one rank, as its agent reads them. Other lines in the file are ignored."""

    def __init__(self, path: str, understood: Callable[[Record], Optional[Record]]) -> None:
        """`understood` returns the valid part of an object; None: another program wrote it."""
        self.path = path
        self._understood = understood
        self.rewind()

    def rewind(self) -> None:
        """Return all lines again."""
        self._position = self._count = 0

    def new(self) -> List[Tuple[int, Record]]:
        """Return the lines that were appended since the last call, numbered from 1 in the file."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._position)
                content = file.read(64 * LINE_BYTES)
        except OSError:
            return []
        whole = content.rfind(b"\n") + 1
        if not whole and len(content) > LINE_BYTES:
            whole = len(content)  # no line is so long; another program writes here
        self._position += whole
        parsed = (self._parsed(line) for line in content[:whole].splitlines())
        records = [record for record in parsed if record is not None]
        first, self._count = self._count + 1, self._count + len(records)
        return list(enumerate(records, start=first))

    def _parsed(self, line: bytes) -> Optional[Record]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return self._understood(record) if isinstance(record, dict) else None

    def remove(self) -> None:
        """Delete the file; raises OSError."""
        os.unlink(self.path)
