"""Restarts within the process, reported to the rank's agent: a file beside its heartbeat. Both sides of it."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Optional

from prefect_ft.worker.appended import Lines, append

_SUFFIX = ".restarts"
_FIELDS = ("iteration", "rank", "kind", "text", "took_ms")


def report_restart(iteration: int, rank: Optional[int], kind: str, text: str, took_ms: float) -> None:
    """Report that `iteration` was entered because of a fault on a rank. Never raises, does not wait."""
    with contextlib.suppress(OSError):
        values = (iteration, rank, kind, text, round(took_ms, 3))
        append(_SUFFIX, dict(zip(_FIELDS, values)))


class Restarts(Lines):
    """The restarts that one rank has reported, as its agent reads them."""

    def __init__(self, beat_path: str) -> None:
        """`beat_path` is the rank's heartbeat file."""
        super().__init__(beat_path + _SUFFIX, _understood)


def _understood(record: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    fields = {field: record.get(field) for field in _FIELDS}
    rank, took_ms = fields["rank"], fields["took_ms"]
    is_known = type(fields["iteration"]) is int and (rank is None or type(rank) is int)
    is_text = all(isinstance(fields[field], str) for field in ("kind", "text"))
    return fields if is_known and is_text and isinstance(took_ms, (int, float)) else None
