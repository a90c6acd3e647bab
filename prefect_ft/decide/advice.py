"""What an advisor's answer about a failure changes: the class, where ours is in doubt, but it never ends a phase.

Owns when an advisor is asked and what its answer may do. Asking is `orchestrate`'s business.
"""

from __future__ import annotations

from dataclasses import replace

from prefect_ft.decide.policy import decide
from prefect_ft.model import RESTARTS, Advice, Entry, History, Incident, Policy

__all__ = ["advised", "is_in_doubt"]

_NO_CLASSES = frozenset((None, "none", "unknown"))
"""Classes that are not an answer."""


def is_in_doubt(incident: Incident) -> bool:
    """Return whether the class of a failure is unknown or of low confidence."""
    return incident.kind == "exit" and (
        incident.failure_class in (None, "unknown") or incident.confidence == "low"
    )


def advised(policy: Policy, history: History, incident: Incident, advice: Advice) -> Incident:
    """Return an incident in doubt with the advice, and by its class unless that would end the phase.

    `history` is what came before it. Blames no system: advice from outside isolates nothing.
    """
    noted = replace(incident, advice=replace(advice, used=False))
    if advice.failure_class in _NO_CLASSES or not is_in_doubt(incident):
        return noted
    taken = replace(
        incident,
        failure_class=advice.failure_class,
        recoverable=None,
        confidence="low",
        blame="none",
        advice=replace(advice, used=True, instead_of=incident.failure_class),
    )
    decision = decide(policy, (*history, Entry(incident=taken)))
    return taken if decision.action in RESTARTS else noted
