"""How much room a file system must keep free, so that the journal can be written on: below that only it is written."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

FLOOR_BYTES = 64 << 20
"""What stays free of a large file system; of a small one a twentieth."""

LOOK_S = 0.25
"""How long a look is as good as another one: on a network's file system each is a question to its server."""


class Room:
    """The room on the file system of a directory."""

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
