"""How sure a verdict is: low where the root was chosen for want of anything better.

Owns what makes a verdict doubtful. Which of it is wrong how often was measured on logs with labels
(docs/signatures.md has the figures).
"""

from __future__ import annotations

from collections.abc import Sequence

from prefect_ft.decide.classify.chains import MENTIONED, ROOT, weight
from prefect_ft.decide.classify.findings import Finding
from prefect_ft.model import Confidence, Recoverable
from prefect_ft.signatures import RECOVERABLE

__all__ = ["confidence_in"]

_NEAR_LINES = 30
_BY_KIND = ("name-", "place-")
"""How rules begin that know the kind of an exception and nothing of its text."""


def confidence_in(chosen: Finding, recoverable: Recoverable, rivals: Sequence[Finding]) -> Confidence:
    """Say how sure it is that a finding is the root; `rivals` are the other candidates of its log."""
    if weight(chosen) == MENTIONED:
        return "low"
    if recoverable is False and (_is_only_said(chosen) or chosen.signature.id.startswith(_BY_KIND)):
        return "low"
    return "low" if any(_contradicts(rival, chosen) for rival in rivals) else "high"


def _is_only_said(finding: Finding) -> bool:
    """Return whether a line says it that no exception ended and that no logger calls an error."""
    return finding.raised is None and finding.level not in ("E", "F") and weight(finding) != ROOT


def _contradicts(rival: Finding, chosen: Finding) -> bool:
    """Return whether another exception, of another kind, could as well be what ended the same process."""
    return (
        rival is not chosen
        and rival.raised is not None
        and weight(rival) == weight(chosen) == ROOT
        and rival.rank == chosen.rank
        and RECOVERABLE[rival.signature.failure_class] != RECOVERABLE[chosen.signature.failure_class]
        and abs(rival.order - chosen.order) > _NEAR_LINES
    )
