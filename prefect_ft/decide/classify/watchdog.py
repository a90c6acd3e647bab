"""Aborts by a watchdog of collectives: it aborts its own process, whatever other ranks of the log still print.

Owns the reading of its messages where an abort is known. It judges no run that made progress.
"""

from __future__ import annotations

from dataclasses import replace

from prefect_ft.decide.classify.chains import CASCADE, weight
from prefect_ft.decide.classify.findings import WENT_ON, Finding, LogFindings
from prefect_ft.decide.classify.launchers import FirstEnd

__all__ = ["as_aborted"]

_NEAR_LINES = 100
"""How many lines other ranks and launchers may print between a watchdog's message and the report of the abort."""

_SETS_UP = "port_in_use"
"""The class of failures to set up a group: a watchdog only watches one that was set up."""


def as_aborted(log: LogFindings, reported: FirstEnd | None) -> LogFindings:
    """Return what a log says of a process that ended by SIGABRT, as its launcher reports if `reported` is there."""
    if reported is not None and reported.log is not log:
        return log
    recalled = _recalled(log, reported)
    findings = (*recalled, *log.findings)
    if reported is not None:
        said = [
            one.order for one in findings if _is_reported_timeout(one) and one.order < reported.finding.order
        ]
        begun = min(said, default=0)
        findings = tuple(
            one for one in findings if one.signature.failure_class != _SETS_UP or one.order > begun
        )
    return replace(log, findings=tuple(sorted(findings, key=lambda one: one.order)))


def _recalled(log: LogFindings, reported: FirstEnd | None) -> list[Finding]:
    """Return a watchdog's last messages that did not count as an end, since other ranks made a little progress."""
    since = max(log.begun, log.completed or 0)
    timeouts = [
        one for one, why in log.over if why == WENT_ON and one.order > since and _is_reported_timeout(one)
    ]
    if not timeouts or not log.tail:
        return []
    end = reported.finding.line if reported is not None else log.number_of_tail(len(log.tail) - 1)
    return [one for one in timeouts if 0 <= end - one.line <= _NEAR_LINES]


def _is_reported_timeout(finding: Finding) -> bool:
    return finding.signature.failure_class == "collective_timeout" and weight(finding) == CASCADE
