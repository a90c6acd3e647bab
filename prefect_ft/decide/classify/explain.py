"""Why each line that could have been the root is not, to explain a verdict.

Owns the wording. `root` chooses; nothing here decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prefect_ft.decide.classify.chains import (
    ASIDE,
    BARE,
    CASCADE,
    INTERRUPTED,
    MENTIONED,
    REPORT,
    ROOT,
    weight,
)
from prefect_ft.decide.classify.findings import Finding, LogFindings
from prefect_ft.decide.classify.survived import without_survived
from prefect_ft.model import Evidence, Verdict

__all__ = ["Lost", "lost"]

_MOST = 64
_BY_WEIGHT = {
    INTERRUPTED: "an interruption explains less than a failure",
    BARE: "a crash that does not say why",
    CASCADE: "only follows from another failure",
    MENTIONED: "logged as a warning or less",
    REPORT: "reports an end and not its cause",
    ASIDE: "can go wrong beside a healthy run",
}


class Lost(NamedTuple):
    """A line that could have been the root, and why it is not."""

    file: str
    finding: Finding
    why: str


def lost(logs: Sequence[LogFindings], verdict: Verdict) -> list[Lost]:
    """Return the candidates that a verdict does not rest on, in the order of their logs."""
    found: list[Lost] = []
    for log in logs:
        found += [
            Lost(log.file, finding, why)
            for finding, why in log.over
            if not _is_root(log, finding, verdict.evidence)
        ]
        kept = without_survived(log.findings)
        for finding in log.findings:
            if not _is_root(log, finding, verdict.evidence):
                found.append(Lost(log.file, finding, _why(log, finding, kept, verdict)))
    return found[:_MOST]


def _is_root(log: LogFindings, finding: Finding, root: Evidence | None) -> bool:
    return root is not None and (log.file, finding.line) == (root.file, root.line)


def _why(log: LogFindings, finding: Finding, kept: Sequence[Finding], verdict: Verdict) -> str:
    root = verdict.evidence
    if verdict.failure_class == "none":
        return "the job is not known to have failed"
    if not any(finding is one for one in kept):
        return "the run went on after it until it was ended from outside"
    said = (*log.findings, *(one for one, _ in log.over))
    chosen = next((one for one in said if _is_root(log, one, root)), None)
    own = weight(finding)
    if own != ROOT and (chosen is None or weight(chosen) < own):
        return _BY_WEIGHT[own]
    if chosen is None:
        return (
            "how the process ended says more"
            if root is None or root.line is None
            else "another log says more"
        )
    if finding.order > chosen.order:
        return f"came after line {chosen.line}"
    ended = "the exception" if chosen.raised is not None else "what is said"
    return f"{ended} in line {chosen.line} ended the process"
