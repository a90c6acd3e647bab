"""What would a policy decide? Reads a file of incidents and decides about them one after the other.

Owns the rules of the file as a whole. Starts nothing and writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from prefect_ft.decide import decide, initial_placement
from prefect_ft.decide.classify import Catalogue
from prefect_ft.decide.incidents import classified
from prefect_ft.errors import ConfigError
from prefect_ft.model import RESTARTS, Decision, Entry, History, Incident, Policy
from prefect_ft.wire import incident_from_json


def read_incidents(path: str | Path) -> list[Incident]:
    """Read a file of incidents, one a line; raises ConfigError with file, line and field."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}", file=str(path)) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError("is not UTF-8 text", file=str(path)) from exc
    incidents: list[Incident] = []
    for number, line in enumerate(text.rstrip().split("\n") if text.strip() else (), start=1):
        try:
            incident = incident_from_json(_parse(line))
            if incidents and incident.t < incidents[-1].t:
                raise ConfigError(f"{incident.t:g} is before the line above; t must not fall", field="t")
        except ConfigError as exc:
            raise ConfigError(exc.message, file=str(path), line=number, field=exc.field) from exc
        incidents.append(incident)
    return incidents


def _parse(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"is not JSON ({exc}); write one object a line") from exc
    if not isinstance(value, dict):
        raise ConfigError("is not a JSON object; write one object a line")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def replay(
    policy: Policy,
    incidents: Iterable[Incident],
    *,
    file: str | None = None,
    catalogue: Catalogue | None = None,
) -> Iterator[Decision]:
    """Decide about each incident in turn, as if each decision had been carried out.

    Raises ConfigError, with the incident's number as its line in `file`, where an incident names an
    unknown place or comes after the end; so take all decisions before showing one.
    """
    history: History = ()
    for line, incident in enumerate(incidents, start=1):
        try:
            _check_order(history)
            _check_place(policy, history, incident)
        except ConfigError as exc:
            raise ConfigError(exc.message, file=file, line=line, field=exc.field) from exc
        known = classified(incident, catalogue)  # once, and not again for each later decision
        decision = decide(policy, (*history, Entry(incident=known)))
        history = (*history, Entry(incident=known, decision=decision))
        yield decision


def _check_order(history: History) -> None:
    last = history[-1].decision if history else None
    if last is not None and last.action not in RESTARTS and last.action != "continue":
        raise ConfigError(
            f"nothing may follow, since incident {last.n} ended the phase ({last.action})", field="kind"
        )


def _check_place(policy: Policy, history: History, incident: Incident) -> None:
    """Make sure that what a machine reports is put to a machine's account."""
    if incident.kind not in ("device_fault", "system_lost"):
        return
    for name in (incident.system, *incident.systems):
        if name is not None and name not in policy.systems:
            field = "system" if name == incident.system else "systems"
            raise ConfigError(f"unknown system {name!r}; known are {', '.join(policy.systems)}", field=field)
    if incident.system is not None or incident.systems:
        return
    if incident.worker is None:
        raise ConfigError(f"a {incident.kind} has to name system, systems or worker", field="system")
    last = history[-1].decision if history else None
    gang = last.placement if last is not None else initial_placement(policy) or ()
    if incident.worker >= len(gang):
        raise ConfigError(f"unknown worker {incident.worker}; the gang has {len(gang)}", field="worker")
