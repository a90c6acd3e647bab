"""How the rank ended that a launcher reports to have failed first: torchrun's line and its table.

Owns the reading of that report among findings. `exits` interprets the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from signal import Signals
from typing import NamedTuple

from prefect_ft.decide.classify.closing import code_in
from prefect_ft.decide.classify.exits import signal_of
from prefect_ft.decide.classify.findings import Finding, LogFindings
from prefect_ft.model import Incident

__all__ = [
    "FirstEnd",
    "ended_otherwise_first",
    "first_end",
    "is_of_rank",
    "rank_named_first",
    "reports_end",
    "was_killed",
]

_LINE = re.compile(
    r"failed \(exitcode: (-?\d+)\) local_rank: |\bexits with return code = (-?\d+)$"
    r"|^Container .{0,40} status failed cmd .{0,2000} code (-?\d+) log "
)
"""What torchrun and the launchers of DeepSpeed and Paddle print as it happens."""

_RAISED_BY_KILL = re.compile(
    r"\bCalledProcessError: .* (?:died with <Signals\.SIGKILL: 9>|returned non-zero exit status 137)\.$"
)
"""What accelerate ends with where the one process that it started was killed, or the shell that had started it."""

_OF_TASKS = re.compile(r"srun: error: \S+: tasks? [\d,\-\[\] ]+: (?:Exited with exit code|Killed)")
"""How srun reports the ends of tasks; its own code is the highest of theirs."""

_ROOT = "Root Cause (first observed failure)"
_ROW = re.compile(r"\bexitcode +: (-?\d+) \(pid")
_RANK_ROW = re.compile(r"\brank +: (\d+) \(local_rank: (\d+)\)")
_TABLE_LINES = 12
_RANK_PREFIX = re.compile(r"\[(rank|default)(\d+)\]")
_RAISED = 1
"""The exit code after an exception, which is in the rank's own output."""

_BY_STATUS = ("signal", "shell-killed")
"""Rules of verdicts on how a process ended: its status, and a shell's word for it."""


class FirstEnd(NamedTuple):
    """The exit code (-n: signal n) of the rank that failed first, and where its launcher says so."""

    exit_code: int
    log: LogFindings
    finding: Finding


def first_end(logs: Sequence[LogFindings]) -> FirstEnd | None:
    """Return the end that explains the failure: of several launchers' the earliest, if all have a time."""
    ends = [end for log in logs for end in _ends(log) if end.exit_code != _RAISED]
    if any(end.finding.stamp is None for end in ends):
        return next(iter(ends), None)
    return min(ends, key=lambda end: end.finding.stamp or 0.0, default=None)


def _ends(log: LogFindings) -> Iterable[FirstEnd]:
    """Read the last report of each launcher in a log: earlier ones are of gangs that were started again."""
    last: dict[str, FirstEnd] = {}
    table_begun: dict[str, int] = {}
    for finding in log.findings:
        if _ROOT in finding.text:
            table_begun[finding.rank] = finding.order
        is_row = 0 < finding.order - table_begun.get(finding.rank, finding.order) <= _TABLE_LINES
        code = _end_in(finding.text, is_row=is_row)
        if code is None and _is_last(finding, log) and _RAISED_BY_KILL.search(finding.text):
            code = -Signals.SIGKILL
        if code is not None:
            end = FirstEnd(code, log, finding)
            known = last.get(finding.rank)
            last[finding.rank] = known if known and known.exit_code == end.exit_code else end
    return last.values()


def _is_last(finding: Finding, log: LogFindings) -> bool:
    """Return whether a log ends with a finding: an exception that was caught is no end."""
    return bool(log.tail) and finding.line >= log.number_of_tail(len(log.tail) - 1)


def reports_end(finding: Finding) -> bool:
    """Return whether a report says how a rank ended, other than by an exception."""
    return _end_in(finding.text, is_row=True) not in (None, 0, _RAISED)


def was_killed(incident: Incident) -> bool:
    """Return whether SIGKILL ended the rank of an incident, or what a launcher or a shell had started as that rank."""
    evidence = incident.evidence
    if incident.signal is not None or evidence is None:
        return incident.signal == Signals.SIGKILL
    is_by_status = evidence.rule in _BY_STATUS and signal_of(incident.exit_code, None) == Signals.SIGKILL
    return is_by_status or _says_killed(evidence.text)


def _says_killed(text: str) -> bool:
    return _end_in(text, is_row=True) == -Signals.SIGKILL or _RAISED_BY_KILL.search(text) is not None


def _end_in(text: str, *, is_row: bool) -> int | None:
    """Return the exit code that a line tells; `is_row`: it may be one of torchrun's table."""
    found = _LINE.search(text) or (_ROW.search(text) if is_row else None)
    return int(next(filter(None, found.groups()))) if found is not None else None


def ended_otherwise_first(log: LogFindings) -> bool:
    """Return whether srun reports that a task ended by itself before any was killed: that of others follows from it."""
    text = next((one.text for one in log.findings if _OF_TASKS.search(one.text)), "")
    code = code_in(text)
    return code != 0 and signal_of(code, None) != Signals.SIGKILL


def rank_named_first(log: LogFindings) -> tuple[str, str] | None:
    """Return rank and local rank that torchrun's last table names as the first that failed.

    `None` without one, and where several launchers have tables: each knows its own ranks only.
    """
    if len({finding.rank for finding in log.findings if _ROOT in finding.text}) != 1:
        return None
    named: tuple[str, str] | None = None
    begun: int | None = None
    for finding in log.findings:
        if _ROOT in finding.text:
            begun, named = finding.order, None
        elif begun is not None and named is None and finding.order - begun <= _TABLE_LINES:
            row = _RANK_ROW.search(finding.text)
            named = (row[1], row[2]) if row else None
    return named


def is_of_rank(finding: Finding, named: tuple[str, str]) -> bool:
    """Return whether a line's prefix is that of a rank; torchrun's own tells the local one."""
    prefix = _RANK_PREFIX.search(finding.rank)
    return prefix is not None and prefix[2] == named[prefix[1] == "default"]
