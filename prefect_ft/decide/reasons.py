"""The reason of a decision: one sentence for a person who is paged at three in the morning.

Owns wording only: the decision was made before, and the text is not parsed. The state of a rule's own
budget is worded by its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from signal import Signals

from typing_extensions import assert_never

from prefect_ft.decide.after_checks import Proposal
from prefect_ft.decide.placement import Gang
from prefect_ft.decide.situation import Situation
from prefect_ft.model import RESTARTS, Action, Evidence, Incident, Kind

_WORDS: Mapping[Kind, str] = {
    "completed": "completed",
    "suspended": "suspension",
    "system_lost": "system lost",
    "preempted": "preemption",
    "cancelled": "cancelled",
    "replacement_failed": "replacing workers failed",
    "rebuild_failed": "rebuilding the gang failed",
    "in_place_failed": "a worker's agent or container is gone",
    "in_process": "the ranks restarted by themselves",
    "handed_over": "hand-over to the next allocation",
}
MAX_QUOTE = 160
"""How many characters of a failure's own text a reason quotes."""

_HEALED = {True: "healed", False: "healing failed", None: "healing not tried"}


def sentence(
    s: Situation,
    proposal: Proposal,
    before: Gang,
    recreate: tuple[int, ...],
    *,
    delay_s: float,
    resume_step: int | None,
) -> str:
    """Return what happened, the state of the budgets, and what is done about it; `s` is settled already."""
    why = f"{proposal.why}, " if proposal.why else ""
    if proposal.isolate:
        why += f"{' and '.join(proposal.isolate)} isolated, "
    done = _done(proposal.action, before, s.pool.gang, recreate)
    if proposal.action in RESTARTS:
        done += " from scratch" if resume_step is None else f" from step {resume_step}"
        if delay_s:
            done += f" after {delay_s:g} s"
    return f"{_what(s)}{_progress(s)}{_budgets(s, proposal)}: {why}{done}"


def _what(s: Situation) -> str:
    incident = s.incident
    details = _details(incident)
    if s.incomplete:
        return _incomplete(s, details)
    if incident.kind == "exit":
        return f"{incident.failure_class}{_quoted(incident.evidence)}{_in_brackets(details)}"
    if incident.kind == "device_fault":
        details = [f"{incident.severity}", _HEALED[incident.healed], *details]
        return f"device fault {incident.code}{_in_brackets(details)}"
    return f"{_WORDS[incident.kind]}{_in_brackets(details)}"


def _incomplete(s: Situation, details: list[str]) -> str:
    step, target = s.checkpoints.highest or s.incident.step, s.policy.target_step
    if step is not None:
        return f"incomplete success, step {step} of target_step {target}{_in_brackets(details)}"
    details = ["no checkpoint with a step was recognised", *details]
    return f"incomplete success, unknown whether target_step {target} was reached{_in_brackets(details)}"


def _details(incident: Incident) -> list[str]:
    """List what is known of how and where it happened."""
    details = []
    if incident.evidence is not None:
        details += [incident.evidence.file] if incident.evidence.file else []
    elif incident.signature is not None:
        details.append(f"signature {incident.signature}")
    if incident.exit_code:
        details.append(f"exit code {incident.exit_code}")
    if incident.signal is not None:
        details.append(signal_name(incident.signal))
    if incident.worker is not None:
        details.append(f"worker {incident.worker}")
    if incident.system is not None or incident.systems:
        details.append(f"system {' and '.join(incident.systems) or incident.system}")
    if incident.device is not None:
        details.append(f"device {incident.device}")
    return details


def signal_name(number: int) -> str:
    """Return a signal's name, or its number where it has none."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def _quoted(evidence: Evidence | None) -> str:
    """Quote what the failure itself said, where a line of output is known."""
    if evidence is None or evidence.line is None:
        return ""
    text = evidence.text if len(evidence.text) <= MAX_QUOTE else evidence.text[: MAX_QUOTE - 1] + "…"
    return f" «{text}»"


def _in_brackets(details: list[str]) -> str:
    return f" ({', '.join(details)})" if details else ""


def _progress(s: Situation) -> str:
    if s.ended_by is not s.incident or s.incident.kind in ("completed", "cancelled"):
        return ""
    return f" after progress to step {s.checkpoints.highest}" if s.progress else " without progress"


def _budgets(s: Situation, proposal: Proposal) -> str:
    """Return the state of the budgets that this decision uses."""
    policy, budgets, rule = s.policy, s.budgets, proposal.rule
    stand = ""
    if proposal.action in rule.effects.counted:
        stand = f", failure {budgets.failures_without_progress} of {policy.max_num_restarts}"
    if rule.standing is not None:
        stand += f", {rule.standing(s)}"
    if proposal.action == "replace_workers":
        stand += f", replacement {budgets.worker_replacements} of {policy.max_worker_replacements}"
    return stand


def _done(action: Action, before: Gang, gang: Gang, recreate: tuple[int, ...]) -> str:
    match action:
        case "restart_in_place":
            done = "restarted in place"
        case "replace_workers":
            moved = [f"{worker} on {gang[worker]}" for worker in recreate]
            done = f"worker {' and '.join(moved)} created anew, the others restarted in place"
        case "rebuild" | "isolate_and_rebuild":
            change = "" if len(gang) == len(before) else f" ({len(gang)} instead of {len(before)})"
            done = f"all workers created anew{change}"
        case "complete":
            done = "the phase is complete"
        case "cancel":
            done = "the phase ends and is not restarted"
        case "fail":
            done = "the phase fails"
        case "continue":
            done = "reported only, the attempt goes on"
        case _:
            assert_never(action)
    return done
