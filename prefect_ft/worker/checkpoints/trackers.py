"""Trackers: small files in the checkpoint directory that name the last checkpoint that was finished.

DeepSpeed's `latest` (`save_checkpoint` in deepspeed/runtime/engine.py) holds a directory's name,
Megatron's `latest_checkpointed_iteration.txt` (`save_checkpoint` in megatron/training/checkpointing.py)
a number. Both are written after the checkpoint that they name.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Optional

from prefect_ft.worker.checkpoints.entry import (
    CLOCK_SKEW_NS,
    COMPLETE,
    FILE_SYSTEM,
    Place,
    Stat,
    Verdict,
    read_at,
)
from prefect_ft.worker.checkpoints.names import UsualNames

LATEST = "latest"
ITERATION = "latest_checkpointed_iteration.txt"

_MAX_BYTES = 4096


class Tracker(NamedTuple):
    """What a tracker says. `step` is `None` if its text names none."""

    file: str
    text: str
    step: Optional[int]
    mtime_ns: int

    def verdict(self, name: str, step: int, mtime_ns: int) -> Verdict:
        """Return whether it vouches for this checkpoint; `None` if its text says nothing about it."""
        if self.text != name and self.step is None:
            return Verdict(None, f"{self.file} does not name a step")
        if self.text != name and self.step is not None and step > self.step:
            return Verdict(False, f"it was never finished: {self.file} still names {self.text}")
        if mtime_ns > self.mtime_ns + CLOCK_SKEW_NS:
            return Verdict(None, f"it was written to after {self.file}")
        return COMPLETE


def read(path: str, state: Stat, place: Place = FILE_SYSTEM) -> Optional[Tracker]:
    """Read one tracker; `None` if it is not one, such as a link `latest` to a checkpoint."""
    if state.size > _MAX_BYTES:
        return None
    try:
        with place.opened(path, state) as file:
            text = read_at(file, state.size, 0).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    step = int(text) if text.isdigit() and len(text) < 19 else UsualNames().read(text)
    return Tracker(os.path.basename(path), text, step if isinstance(step, int) else None, state.mtime_ns)
