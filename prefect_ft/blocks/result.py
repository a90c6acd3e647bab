"""The result of a block's command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prefect_ft.model import Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """How an attempt of a command ended.

    `incident` says what happened, `reason` the same in one line; `log` holds all attempts' output.
    """

    attempt: int
    incident: Incident
    reason: str
    log: Path

    @property
    def succeeded(self) -> bool:
        """Whether every rank has completed."""
        return self.incident.kind == "completed"
