"""The errors with which a supervisor ends an attempt, and their description in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect_ft.errors import PrefectFTError
from prefect_ft.model import Decision, Incident


class AttemptFailedError(PrefectFTError):
    """An attempt ended and the phase is not complete. `decision` is set if it has been made already."""

    def __init__(self, incident: Incident, decision: Decision | None = None, **facts: Any) -> None:
        """`facts` go into the journal beside the incident."""
        self.incident, self.decision, self.facts = incident, decision, facts
        super().__init__(describe(incident))


class HandedOverError(PrefectFTError):
    """The run waits for its next tenure: its ranks have been stopped, and nothing is decided yet."""


class UnfitSystemsError(Exception):
    """Systems failed their check; `systems` has the reason for each."""

    def __init__(self, systems: Mapping[str, str]) -> None:
        self.systems = systems
        super().__init__("; ".join(f"{system}: {why}" for system, why in systems.items()))


def describe(incident: Incident) -> str:
    """Describe in one line what happened."""
    where = "the attempt" if incident.worker is None else f"worker {incident.worker}"
    if incident.system is not None or incident.systems:
        where = ", ".join(name for name in (incident.system, *incident.systems) if name is not None)
    how = f"exit code {incident.exit_code}" if incident.signal is None else f"signal {incident.signal}"
    what = f"{incident.failure_class}, {how}" if incident.kind == "exit" else incident.kind.replace("_", " ")
    return f"{where}: {what}" + (f": {incident.evidence.text}" if incident.evidence else "")
