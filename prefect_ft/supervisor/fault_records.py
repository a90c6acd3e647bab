"""Turns reports of monitors and ranks on devices and systems into incidents. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from prefect_ft.config import Faults
from prefect_ft.errors import ConfigError
from prefect_ft.files import parse_json
from prefect_ft.journal.forms import incident_from_json
from prefect_ft.model import Evidence, Incident
from prefect_ft.worker.detectors import lines

KINDS = ("device_fault", "system_lost", "preempted")
_TAKEN = ("kind", "system", "systems", "device", "code", "severity", "healed")


def parsed(line: str) -> Mapping[str, Any]:
    """Return one line of a monitor as an object; raises ConfigError."""
    try:
        record = parse_json(line)
    except ValueError as exc:
        raise ConfigError("is not JSON; write one object a line") from exc
    if not isinstance(record, dict):
        raise ConfigError("is not a JSON object; write one object a line")
    return record


def report_of(record: Mapping[str, Any], faults: Faults, systems: Collection[str]) -> Incident | None:
    """Return a record's incident; None: it is about none of these systems. Raises ConfigError with the field.

    Unknown fields are ignored. A fault with a code of unknown severity counts as a warning.
    """
    fields = {name: value for name, value in record.items() if name in _TAKEN and value is not None}
    fields.setdefault("kind", "device_fault")
    if fields["kind"] not in KINDS:
        raise ConfigError(f"{fields['kind']!r} is none of {', '.join(KINDS)}", field="kind")
    if type(fields.get("device")) is int:
        fields["device"] = str(fields["device"])
    incident = incident_from_json({"t": 0, **_with_severity(fields, faults)})
    named = {name for name in (incident.system, *incident.systems) if name is not None}
    if not named:
        raise ConfigError("missing; say where it is", field="system")
    if not named & set(systems):
        return None
    return _with_evidence(incident, record)


def _with_severity(fields: Mapping[str, Any], faults: Faults) -> Mapping[str, Any]:
    if fields["kind"] != "device_fault" or not isinstance(fields.get("code"), str):
        return fields
    return {**fields, "severity": faults.severity_of(fields["code"], fields.get("severity")) or "warning"}


def _with_evidence(incident: Incident, record: Mapping[str, Any]) -> Incident:
    text = record.get("message") or _in_words(incident)
    return replace(incident, evidence=Evidence(rule=incident.kind.replace("_", "-"), text=str(text)))


def _in_words(incident: Incident) -> str:
    where = ", ".join(name for name in (incident.system, *incident.systems) if name is not None)
    if incident.kind != "device_fault":
        return f"{where}: {incident.kind.replace('_', ' ')}"
    return f"{where}: device {incident.device}: {incident.code} ({incident.severity})"


def in_output(text: str, faults: Faults) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Return records of the faults named in lines of output, if the severity of their code is known.

    Each with the position in `text` at which its line begins.
    """
    if not any(mark in text for mark in lines.MARKS):
        return
    place = 0
    for line in text.splitlines(keepends=True):
        for named in lines.in_output(line):
            if faults.knows(named.code):
                fault = {"device": named.device, "code": named.code, "severity": named.severity}
                yield place, {**fault, "message": line.strip()[:1000]}
        place += len(line)
