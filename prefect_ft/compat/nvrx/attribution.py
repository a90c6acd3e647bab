"""Why an iteration ended, in their words."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Interruption(enum.Enum):
    """What happened on a rank."""

    EXCEPTION = enum.auto()
    BASE_EXCEPTION = enum.auto()
    SOFT_TIMEOUT = enum.auto()
    HARD_TIMEOUT = enum.auto()
    TERMINATED = enum.auto()
    UNRESPONSIVE = enum.auto()
    MONITOR_PROCESS_EXCEPTION = enum.auto()


class InterruptionRecord(NamedTuple):
    """What happened on which rank."""

    rank: int
    interruption: Interruption
