"""The wrapper's time-outs in seconds, from what users write. None: there is none."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple, Optional, Union

Duration = Union[float, timedelta]
"""Seconds, or a timedelta."""


class Limits(NamedTuple):
    """Time-outs in seconds; docs/in-process.md says what each bounds."""

    soft_s: Optional[float]
    hard_s: Optional[float]
    heartbeat_s: float
    barrier_s: float
    completion_s: float
    grace_s: float = 0.0


def seconds(name: str, value: Duration) -> float:
    """Return a duration in seconds; raises ValueError where it is not above 0."""
    given = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not 0 < given < float("inf"):
        raise ValueError(f"{name} must be above 0 s, not {value!r}")
    return given


def limits(
    soft: Optional[Duration],
    hard: Optional[Duration],
    heartbeat: Duration,
    barrier: Duration,
    completion: Duration,
    *,
    grace: Duration = 0.0,
) -> Limits:
    """Check the time-outs against each other; raises ValueError."""
    soft_s = None if soft is None else seconds("soft_timeout", soft)
    hard_s = None if hard is None else seconds("hard_timeout", hard)
    if soft_s is not None and hard_s is not None and hard_s <= soft_s:
        raise ValueError("hard_timeout must be above soft_timeout: first a rank is interrupted, then killed")
    return Limits(
        soft_s,
        hard_s,
        seconds("heartbeat_timeout", heartbeat),
        seconds("barrier_timeout", barrier),
        seconds("completion_timeout", completion),
        grace.total_seconds() if isinstance(grace, timedelta) else float(grace),
    )
