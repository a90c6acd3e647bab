"""How sure a verdict is: low where the root was chosen for lack of a better one.

Owns what makes a verdict doubtful. How often it is wrong with and without such a doubt was measured on labelled
logs (docs/signatures.md has the figures).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from signal import Signals

from prefect_ft.decide.classify.chains import BY_EXCEPTION, CASCADE, MENTIONED, ROOT, weight
from prefect_ft.decide.classify.findings import Finding, LogFindings
from prefect_ft.decide.classify.kinds import says_little
from prefect_ft.decide.classify.reading import is_library
from prefect_ft.decide.classify.survived import MAY_BE_UNHEEDED
from prefect_ft.model import Confidence, FailureClass, Recoverable
from prefect_ft.signatures import RECOVERABLE

__all__ = ["confidence_in", "confidence_of_end", "confidence_of_none"]

_FAR_LINES = 8
"""How far before a log's end a line without a following exception may have been survived."""

_UNHEEDED_LINES = 100
"""How far before a log's end a part of a program may have failed without ending the whole."""

_BY_KIND = ("name-", "place-", "words-")
"""Prefixes of rules that match the kind of an exception and not its text."""

_MAY_PASS = frozenset(("cuda-no-device",))
"""Failures from a wrong set-up, but also from a lost device or an allocation without one."""

_HELD_BEFORE = frozenset(
    ("errno-config", "path-does-not-exist", "py-assertion", "py-file-not-found", "py-permission")
)
"""Failures of a set-up that worked when the run began: a file system or a sample may be at fault."""

_OF_A_SCRIPT = "cfg-shell-not-found"
"""A command of a script: the one that matters may be another, which has failed as well."""

_BY_STATUS = frozenset(("cfg-http-client-error", "errno-config"))
_REFUSED = re.compile(r"\b403\b")
"""A server's answer to forbidden requests, and also to too many, or at a bad time."""

_FROM_BELOW = frozenset(("hardware", "oom_host", "storage"))
"""Failures below a program that look like errors of the program."""


def confidence_in(
    chosen: Finding, recoverable: Recoverable, log: LogFindings, rivals: Sequence[Finding]
) -> Confidence:
    """Return how sure it is that a finding is the root; `rivals` are the candidates of all logs."""
    if weight(chosen) == MENTIONED or _is_of_library(chosen) or _may_be_survived(chosen, log):
        return "low"
    if chosen.signature.id.startswith(_BY_KIND) and (recoverable is False or chosen.raised is None):
        return "low"
    if recoverable is not False:
        return "high"
    is_doubtful = (
        chosen.signature.id in _MAY_PASS
        or (log.had_progress and chosen.signature.id in _HELD_BEFORE)
        or (chosen.signature.id in _BY_STATUS and _REFUSED.search(chosen.text) is not None)
        or weight(chosen) != ROOT
        or _is_only_said_early(chosen, log)
        or (chosen.signature.id == _OF_A_SCRIPT and any(_failed_too(rival) for rival in rivals))
        or any(_contradicts(rival, chosen) for rival in rivals)
    )
    return "low" if is_doubtful else "high"


def confidence_of_end(number: int | None, failure_class: FailureClass, rule: str) -> Confidence:
    """Return how sure the verdict of an exit is: an abort has a stated reason, an exit code alone has none."""
    is_abort = failure_class == "crash" and number == Signals.SIGABRT
    return "low" if is_abort or (failure_class == "unknown" and rule == "exit-code") else "high"


def confidence_of_none(logs: Sequence[LogFindings], exit_code: int | None) -> Confidence:
    """Return how sure it is that a run is healthy: low where its log complains, unless it completed."""
    is_through = exit_code == 0 or any(log.completed is not None for log in logs)
    complains = any(log.findings or log.complaints for log in logs)
    return "low" if complains and not is_through else "high"


def _is_of_library(finding: Finding) -> bool:
    """Return whether a library raised an exception of which only an unspecific name is known."""
    raised = finding.raised
    return raised is not None and says_little(finding.signature) and is_library(raised.file)


def _may_be_survived(finding: Finding, log: LogFindings) -> bool:
    """Return whether a single line, with nothing soon after, reports a failure of maybe one part of a program."""
    if finding.raised is not None or finding.signature.failure_class not in MAY_BE_UNHEEDED:
        return False
    later = (one.line for one in log.findings if one.order > finding.order)
    return next(later, finding.line) - finding.line > _UNHEEDED_LINES


def _failed_too(rival: Finding) -> bool:
    return rival.signature.id != _OF_A_SCRIPT and weight(rival) <= CASCADE


def _is_only_said_early(finding: Finding, log: LogFindings) -> bool:
    """Return whether only a line says it, and much was printed after it."""
    if finding.raised is not None or not log.tail:
        return False
    later = (one.first_line for one in log.findings if one.order > finding.order)
    return next(later, log.number_of_tail(len(log.tail) - 1)) - finding.line > _FAR_LINES


def _contradicts(rival: Finding, chosen: Finding) -> bool:
    """Return whether another finding says that a restart could help."""
    is_said = weight(rival) == ROOT or rival.is_mention
    if rival is chosen or not is_said or RECOVERABLE[rival.signature.failure_class] is False:
        return False
    is_another_end = rival.raised is not None and rival.rank != chosen.rank
    return rival.signature.failure_class in _FROM_BELOW or (
        is_another_end and rival.signature.failure_class not in BY_EXCEPTION
    )
