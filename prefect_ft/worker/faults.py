"""Device faults that a rank itself notices, reported to its agent through a file beside its heartbeat.

Like the heartbeat it must never raise or wait inside the user's training.
"""

from __future__ import annotations

from prefect_ft.worker.appended import Lines, append

TYPE_CHECKING = False  # typing's own would cost its import
if TYPE_CHECKING:
    from prefect_ft.worker.appended import Record

__all__ = ["SEVERITIES", "Reports", "report_fault"]

SEVERITIES = ("warning", "minor", "major", "critical")
"""From harmless to beyond repair, as in docs/recovery-policy.md."""

_SUFFIX = ".faults"
_FIELDS = ("device", "code", "severity", "message")


def report_fault(device: object, code: str, severity: str | None = None, message: str = "") -> bool:
    """Report a fault of a device that this rank uses; the recovery policy decides what to do about it.

    `device` is its number or name on this system, `code` what the vendor calls the fault. `severity` is
    one of `SEVERITIES`; None: the job's `faults` section derives it from the code. Returns whether the report was
    written: False where `PREFECT_FT_HEARTBEAT` does not name a file, or an argument is invalid.
    """
    try:
        if severity not in (None, *SEVERITIES) or not isinstance(code, str) or not code:
            return False
        report = {"device": str(device), "code": code, "severity": severity, "message": str(message)[:1000]}
        return append(_SUFFIX, report)
    except Exception:  # as with a heartbeat: the training is worth more
        return False


class Reports(Lines):
    """The reports of one rank, as its agent reads them."""

    def __init__(self, beat_path: str) -> None:
        """`beat_path` is the rank's heartbeat file."""
        super().__init__(beat_path + _SUFFIX, _understood)


def _understood(report: Record) -> Record | None:
    if not isinstance(report.get("code"), str):
        return None
    fields = {field: report.get(field) for field in _FIELDS}
    is_text = all(value is None or isinstance(value, str) for value in fields.values())
    return fields if is_text and fields["severity"] in (None, *SEVERITIES) else None
