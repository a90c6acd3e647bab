"""The journal of a phase: append-only JSON lines, the one truth about what happened and was decided.

A line is whole or it does not count: a reader passes over a torn last line, a writer removes it first.
Every line has `type`, `t` (seconds since the phase began, never falling) and `utc`; docs/journal.md
lists the types.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prefect_ft.errors import JournalError
from prefect_ft.model import Decision, Entry, History, Incident
from prefect_ft.wire import decision_from_json, decision_to_json, incident_from_json, incident_to_json

Line = Mapping[str, Any]

_ENVELOPE = ("type", "t", "utc", "n", "ended_t", "first_step", "last_step")


def read_lines(path: Path) -> list[Line]:
    """Give the journal's whole lines; never raises for what is in the file, OSError for the file itself."""
    return list(_parse(path.read_bytes()))


def _parse(data: bytes) -> Iterator[Line]:
    for raw in data.split(b"\n")[:-1]:
        try:
            line = json.loads(raw)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("type"), str):
            yield line


def history_of(lines: list[Line]) -> History:
    """Give the incidents that a journal records, each with its decision where one was made."""
    decisions = {line["n"]: line for line in lines if line["type"] == "decision"}
    return tuple(
        Entry(
            incident=_incident(line),
            decision=_decision(decisions[line["n"]]) if line["n"] in decisions else None,
        )
        for line in lines
        if line["type"] == "incident"
    )


def _incident(line: Line) -> Incident:
    fields = {name: value for name, value in line.items() if name not in _ENVELOPE}
    return incident_from_json({**fields, "t": line["t"]})


def _decision(line: Line) -> Decision:
    return decision_from_json(
        {name: value for name, value in line.items() if name not in ("type", "t", "utc")}
    )


class Journal:
    """The one writer of a phase's journal. Raises JournalError where the disk does not take a line."""

    def __init__(self, path: Path) -> None:
        """Open or create; a torn last line, which was never acted on, is removed."""
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            whole = path.read_bytes()
            end = whole.rfind(b"\n") + 1
            if end < len(whole):
                os.ftruncate(self._fd, end)
            _sync_directory(path.parent)
        except OSError as exc:
            raise _failed(path, exc) from exc
        self._lines = list(_parse(whole[:end]))

    @property
    def lines(self) -> list[Line]:
        """All lines so far, in their order."""
        return self._lines

    @property
    def last_t(self) -> float:
        """Seconds since the phase began of the last line; 0 in an empty journal."""
        return float(self._lines[-1]["t"]) if self._lines else 0.0

    def history(self) -> History:
        """Give the incidents so far, each with its decision."""
        return history_of(self._lines)

    def append(self, line_type: str, /, *, t: float, utc: str, **fields: Any) -> None:
        """Write one line; it survives this process's death, but the machine's only after `sync`."""
        self._write({"type": line_type, "t": round(max(t, self.last_t), 6), "utc": utc, **fields})

    def append_incident(self, incident: Incident, *, n: int, utc: str, ended_t: float, **facts: Any) -> None:
        """Write the `n`-th incident; `ended_t` is when what it reports happened, as near as is known."""
        fields = incident_to_json(incident)
        t = fields.pop("t")
        self.append("incident", t=t, utc=utc, n=n, ended_t=round(ended_t, 6), **facts, **fields)

    def append_decision(self, decision: Decision, *, t: float, utc: str) -> None:
        """Write a decision and make it, and all before it, last: only then may it be carried out."""
        self.append("decision", t=t, utc=utc, **decision_to_json(decision))
        self.sync()

    def sync(self) -> None:
        """Make all lines survive the machine's death."""
        try:
            os.fsync(self._fd)
        except OSError as exc:
            raise _failed(self.path, exc) from exc

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, line: Line) -> None:
        data = json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"
        size = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                written += os.write(self._fd, data[written:])  # says why it does not fit
        except OSError as exc:
            os.ftruncate(self._fd, size)
            raise _failed(self.path, exc) from exc
        self._lines.append(line)


def _failed(path: Path, exc: OSError) -> JournalError:
    return JournalError(f"{path}: the journal cannot be written: {exc.strerror}")


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
