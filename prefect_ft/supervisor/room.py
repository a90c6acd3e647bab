"""Watches a file system's free space: below a limit only the journal is written."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

FLOOR_BYTES = 64 << 20
"""The limit on a large file system; on a small one it is a twentieth."""

LOOK_S = 0.25
"""How long a result is reused: on a network file system each check is a request to its server."""


class Room:
    """The free space on the file system of a directory."""

    def __init__(self, directory: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._directory, self._now = directory, now
        self._looked_s: float | None = None
        self._why: str | None = None

    def why_none(self) -> str | None:
        """Return why nothing but the journal may be written; None: there is space, or it is unknown."""
        now_s = self._now()
        if self._looked_s is None or now_s - self._looked_s >= LOOK_S:
            self._looked_s, self._why = now_s, self._look()
        return self._why

    def _look(self) -> str | None:
        try:
            found = os.statvfs(self._directory)
        except OSError:
            return None
        free = found.f_bavail * found.f_frsize
        floor = min(FLOOR_BYTES, found.f_blocks * found.f_frsize // 20)
        return f"{free >> 10} KiB are free, less than {floor >> 10} KiB" if free < floor else None
