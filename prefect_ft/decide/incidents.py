"""What is known of an incident before any rule sees it: its class, where it happened, what it blames.

Owns the reading of one incident against the gang of its time; counts nothing and chooses nothing.
"""

from __future__ import annotations

from dataclasses import replace

from prefect_ft.decide.classify import RECOVERABLE, Catalogue, classify
from prefect_ft.model import Incident, Policy, Recoverable, Verdict

UNCLASSIFIED = frozenset((None, "none"))
"""The classes of an exit that is not yet known to be a failure."""

NOT_HERE = frozenset(("peer", "none"))
"""What a line may blame other than the system where it happened."""

FAILED_RECOVERIES = frozenset(("replacement_failed", "rebuild_failed", "in_place_failed"))
"""Kinds that end no attempt, since it had ended before; but the last can also end one."""


def with_verdict(incident: Incident, verdict: Verdict) -> Incident:
    """Fill in what the incident leaves open from a classification of its output.

    `recoverable` is that of one catalogue entry, so it is taken only where it narrows that of the class:
    that a missing module is a `config` error does not make it `recoverable: false`.
    """
    narrowed: Recoverable = None
    if verdict.recoverable != RECOVERABLE[verdict.failure_class]:
        narrowed = verdict.recoverable
    return replace(
        incident,
        failure_class=verdict.failure_class,
        signature=verdict.signature if incident.signature is None else incident.signature,
        recoverable=narrowed if incident.recoverable is None else incident.recoverable,
        confidence="low"
        if incident.confidence is None and verdict.confidence == "low"
        else incident.confidence,
        blame=verdict.blame if incident.blame is None else incident.blame,
        evidence=verdict.evidence if incident.evidence is None else incident.evidence,
    )


def classified(incident: Incident, catalogue: Catalogue | None = None) -> Incident:
    """Return the incident with its class; an exit that was not a failure becomes `completed`.

    `catalogue` is the package's own if not given.
    """
    if incident.kind != "exit":
        return incident
    if incident.failure_class is None and incident.log:
        verdict = classify(
            {"": incident.log}, exit_code=incident.exit_code, signal=incident.signal, catalogue=catalogue
        )
        incident = with_verdict(incident, verdict)
    if incident.failure_class not in UNCLASSIFIED:
        return incident
    if incident.exit_code == 0 and incident.signal is None:
        return replace(incident, kind="completed", failure_class=None)
    return replace(incident, failure_class="unknown")


def is_incomplete(policy: Policy, highest_step: int, incident: Incident) -> bool:
    """Return whether a completion fell short of the target; a highest step of 0 means unknown.

    Steps that are only counted do not show it.
    """
    target = policy.target_step
    return (
        target is not None
        and policy.mode != "eval"
        and highest_step < target
        and incident.counted is not True
    )


def ended_at_unknown_step(incident: Incident) -> bool:
    """Return whether the training came to its end, and no checkpoint was ever known that says how far."""
    known = (incident.step, incident.seen_step, incident.baseline_step)
    return incident.kind == "completed" and all(step is None for step in known)


def places(incident: Incident, gang: tuple[str, ...]) -> tuple[str, ...]:
    """Return the systems on which it happened; empty if the line does not say: a hand-over names the next pool."""
    if incident.kind == "handed_over":
        return ()
    system, systems, worker = incident.system, incident.systems, incident.worker
    if systems:
        return tuple(dict.fromkeys(systems if system is None else (system, *systems)))
    if system is not None:
        return (system,)
    return (gang[worker],) if worker is not None and worker < len(gang) else ()


def blamed_systems(incident: Incident, policy: Policy, gang: tuple[str, ...]) -> tuple[str, ...]:
    """Return the systems of the pool that are to blame: those where it happened, unless the line denies it."""
    if incident.blame in NOT_HERE or incident.kind == "handed_over":
        return ()
    system, worker = incident.system, incident.worker
    if incident.systems:
        return tuple([name for name in places(incident, gang) if name in policy.systems])
    if system is not None:
        return (system,) if system in policy.systems else ()
    return (gang[worker],) if worker is not None and worker < len(gang) else ()


def suspected_systems(incident: Incident, policy: Policy, gang: tuple[str, ...]) -> tuple[str, ...]:
    """Return the systems that a failure makes suspect: those to blame, then those of silent workers.

    A worker is silent if it did not report a collective timeout that others did; none is where all
    reported it, or none did.
    """
    blamed = blamed_systems(incident, policy, gang)
    reported = incident.reported
    if not reported or incident.failure_class != "collective_timeout":
        return blamed
    silent = [name for worker, name in enumerate(gang) if worker not in reported]
    if len(silent) == len(gang):
        return blamed
    return (*blamed, *[name for name in silent if name not in blamed]) if blamed else tuple(silent)


def is_report(incident: Incident, policy: Policy, gang: tuple[str, ...]) -> bool:
    """Return whether the attempt continues: nothing failed, or only on a system without a worker."""
    match incident.kind:
        case "in_process":
            return True
        case "suspended":
            return not policy.suspension_restart
        case "device_fault" | "system_lost":
            where = places(incident, gang)
            is_warning = incident.kind == "device_fault" and incident.severity == "warning"
            return is_warning or (bool(where) and not set(where) & set(gang))
        case _:
            return False
