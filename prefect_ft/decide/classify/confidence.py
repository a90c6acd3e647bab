"""How sure a verdict is: low where the root was chosen for want of anything better.

Owns what makes a verdict doubtful. How often it is wrong with and without such a doubt was measured on logs with
labels (docs/signatures.md has the figures).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from prefect_ft.decide.classify.chains import BY_EXCEPTION, CASCADE, GENERIC, MENTIONED, ROOT, weight
from prefect_ft.decide.classify.findings import Finding, LogFindings
from prefect_ft.decide.classify.reading import is_library
from prefect_ft.model import Confidence, Recoverable
from prefect_ft.signatures import RECOVERABLE

__all__ = ["confidence_in"]

_FAR_LINES = 200
"""So far before a log's end a line that no exception follows may have been survived."""

_BY_KIND = ("name-", "place-", "words-")
"""How rules begin that know the kind of an exception and nothing of its text."""

_MAY_PASS = frozenset(("cuda-no-device",))
"""What a wrong set-up brings, and a lost device or an allocation that was given none as well."""

_OF_A_SCRIPT = "cfg-shell-not-found"
"""A command of a script: the one that matters may be another, which has failed as well."""

_BY_STATUS = frozenset(("cfg-http-client-error", "errno-config"))
_REFUSED = re.compile(r"\b403\b")
"""What a server says to who may not ask, and also to who asks too often or at a bad time."""

_FROM_BELOW = frozenset(("hardware", "oom_host", "storage"))
"""What makes programs fail in ways that look like mistakes of theirs."""


def confidence_in(
    chosen: Finding, recoverable: Recoverable, log: LogFindings, rivals: Sequence[Finding]
) -> Confidence:
    """Say how sure it is that a finding is the root; `rivals` are the candidates of all logs."""
    if weight(chosen) == MENTIONED or _is_unknown_of_library(chosen):
        return "low"
    if recoverable is not False:
        return "low" if chosen.signature.id.startswith(_BY_KIND) and chosen.raised is None else "high"
    is_doubtful = (
        chosen.signature.id.startswith(_BY_KIND)
        or chosen.signature.id in _MAY_PASS
        or (chosen.signature.id in _BY_STATUS and _REFUSED.search(chosen.text) is not None)
        or weight(chosen) != ROOT
        or _is_only_said_early(chosen, log)
        or (chosen.signature.id == _OF_A_SCRIPT and any(_failed_too(rival) for rival in rivals))
        or any(_contradicts(rival, chosen) for rival in rivals)
    )
    return "low" if is_doubtful else "high"


def _is_unknown_of_library(finding: Finding) -> bool:
    """Return whether a library raised an exception of which not even the name is known."""
    raised = finding.raised
    return finding.signature is GENERIC and raised is not None and is_library(raised.file)


def _failed_too(rival: Finding) -> bool:
    return rival.signature.id != _OF_A_SCRIPT and weight(rival) <= CASCADE


def _is_only_said_early(finding: Finding, log: LogFindings) -> bool:
    """Return whether only a line says it, of which much was printed after it."""
    if finding.raised is not None or not log.tail:
        return False
    return log.number_of_tail(len(log.tail) - 1) - finding.line > _FAR_LINES


def _contradicts(rival: Finding, chosen: Finding) -> bool:
    """Return whether another finding says that a restart could help."""
    if rival is chosen or weight(rival) != ROOT or RECOVERABLE[rival.signature.failure_class] is False:
        return False
    is_another_end = rival.raised is not None and rival.rank != chosen.rank
    return rival.signature.failure_class in _FROM_BELOW or (
        is_another_end and rival.signature.failure_class not in BY_EXCEPTION
    )
