"""Device faults that a rank itself notices: told to its agent through a file beside its heartbeat.

Owns that file, both sides of it: JSON lines, appended by the rank and its children, read by the agent.
Like the heartbeat it must never raise or wait inside the user's training, and imports nothing else of
this package.
"""

from __future__ import annotations

import json
import os

__all__ = ["SEVERITIES", "Reports", "report_fault"]

SEVERITIES = ("warning", "minor", "major", "critical")
"""From harmless to beyond repair, as in docs/recovery-policy.md."""

LINE_BYTES = 4096
"""The longest report that counts; what is appended in one call of at most so much stays one piece."""

_VARIABLE = "PREFECT_FT_HEARTBEAT"
_SUFFIX = ".faults"
_FIELDS = ("device", "code", "severity", "message")


def report_fault(device: object, code: str, severity: str | None = None, message: str = "") -> bool:
    """Report a fault of a device that this rank uses; the recovery policy decides what is done about it.

    `device` is its number or name on this system, `code` what the vendor calls the fault. `severity` is
    one of `SEVERITIES`; None: the job's `faults` section knows it by the code. Gives whether the report is
    on its way: False where `PREFECT_FT_HEARTBEAT` does not name a file, or the report is no such.
    """
    try:
        path = os.environ.get(_VARIABLE)
        if not path or severity not in (None, *SEVERITIES) or not isinstance(code, str) or not code:
            return False
        return _append(path + _SUFFIX, {"device": str(device), "code": code, "severity": severity}, message)
    except Exception:  # as with a heartbeat: the training is worth more
        return False


def _append(path: str, report: dict[str, str | None], message: str) -> bool:
    text = str(message)[:1000]
    line = json.dumps({**report, "message": text}).encode("ascii") + b"\n"
    if len(line) > LINE_BYTES:
        return False
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return os.write(fd, line) == len(line)
    finally:
        os.close(fd)


class Reports:
    """The reports of one rank, as its agent reads them. What is no report in the file is passed over."""

    def __init__(self, beat_path: str) -> None:
        """`beat_path` is the rank's heartbeat file."""
        self.path = beat_path + _SUFFIX
        self.rewind()

    def rewind(self) -> None:
        """Give all reports again."""
        self._position = self._count = 0

    def new(self) -> list[tuple[int, dict[str, str | None]]]:
        """Give the reports that were appended since the last call, numbered from 1 in the file."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._position)
                content = file.read(64 * LINE_BYTES)
        except OSError:
            return []
        whole = content.rfind(b"\n") + 1
        if not whole and len(content) > LINE_BYTES:
            whole = len(content)  # no report is so long; somebody else writes here
        self._position += whole
        parsed = (_parsed(line) for line in content[:whole].splitlines())
        reports = [report for report in parsed if report is not None]
        first, self._count = self._count + 1, self._count + len(reports)
        return list(enumerate(reports, start=first))

    def remove(self) -> None:
        """Delete the file; raises OSError."""
        os.unlink(self.path)


def _parsed(line: bytes) -> dict[str, str | None] | None:
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(report, dict) or not isinstance(report.get("code"), str):
        return None
    told = {field: report.get(field) for field in _FIELDS}
    is_text = all(value is None or isinstance(value, str) for value in told.values())
    return told if is_text and told["severity"] in (None, *SEVERITIES) else None
