"""The decision about an incident: the table of docs/recovery-policy.md, row by row, in its order.

Owns which rule decides. What rules can choose is in `moves`, what a restart has to pass in
`after_checks`, what is counted in `budgets`, who stands where in `placement`, from which step to go
on in `resume`. Pure: the same history gives the same decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from prefect_ft.decide import moves
from prefect_ft.decide.after_checks import Proposal, backoff_s, check
from prefect_ft.decide.moves import Move, always
from prefect_ft.decide.placement import recreated
from prefect_ft.decide.reasons import sentence
from prefect_ft.decide.situation import Situation, fold
from prefect_ft.model import RESTARTS, Decision, History, Policy

SAME_DEVICE_FAULTS = 3


class Rule(NamedTuple):
    """One row of the table."""

    name: str
    when: Callable[[Situation], bool]
    then: Callable[[Situation], Move]


def is_non_recoverable(s: Situation) -> bool:
    """Say whether no restart can help; a configuration that has worked is not one that is wrong."""
    if s.policy.unconditional or s.kind != "exit":
        return False
    wrong = s.failure_class in ("compile", "assertion") or (s.failure_class == "config" and not s.progress)
    return wrong or s.incident.recoverable is False


def is_repeated_fault(s: Situation) -> bool:
    """Say whether a device reported the same code too often within a day."""
    return s.same_device_fault >= SAME_DEVICE_FAULTS


def is_healable(s: Situation) -> bool:
    """Say whether it is a device fault that healing can help against."""
    return s.severity in ("minor", "major")


def is_unhealed(s: Situation) -> bool:
    """Say whether healing a device failed, or was not tried where it could have helped."""
    return s.severity is not None and (s.incident.healed is False or is_healable(s))


def is_node_lost(s: Situation) -> bool:
    """Say whether a system is gone, or a rank's own output puts the blame on it."""
    return s.kind == "system_lost" or (s.failure_class == "hardware" and bool(s.blamed))


def is_repeated(s: Situation) -> bool:
    """Say whether a failure came back identically too often; a limit of 0 is none."""
    limit = s.policy.stop_on_repeat
    return s.failure_class in ("crash", "unknown", "data") and 0 < limit < s.budgets.same_failure


def asks_for_confirmation(s: Situation) -> bool:
    """Say whether the catalogue's entry asks for it, whatever the class."""
    return s.kind == "exit" and s.incident.recoverable == "confirm" and not s.policy.environment_only


def needs_confirmation(s: Situation) -> bool:
    """Say whether the class is one that comes back as a rule."""
    by_class = s.failure_class in ("user_code", "oom_device") or (s.failure_class == "config" and s.progress)
    return by_class and not s.policy.environment_only


RULES: tuple[Rule, ...] = (
    Rule("completed", lambda s: s.kind == "completed", always("complete")),
    Rule("cancelled", lambda s: "cancelled" in (s.kind, s.failure_class), always("cancel")),
    Rule("fault-warning", lambda s: s.severity == "warning", always("continue")),
    Rule("in-process", lambda s: s.kind == "in_process", always("continue")),
    Rule("non-recoverable", is_non_recoverable, always("fail", "a restart would not help")),
    Rule("preempted", lambda s: "preempted" in (s.kind, s.failure_class), moves.preempted),
    Rule(
        "fault-user-induced",
        lambda s: is_repeated_fault(s) and s.incident.code in s.policy.user_induced_codes,
        always("rebuild", "the code means that the program or its data caused it"),
    ),
    Rule("fault-repeated", is_repeated_fault, moves.isolate),
    Rule("fault-healed", lambda s: is_healable(s) and s.incident.healed is True, always("restart_in_place")),
    Rule("fault-heal-failed", is_unhealed, moves.isolate),
    Rule("fault-critical", lambda s: s.severity == "critical", moves.isolate),
    Rule("node-lost", is_node_lost, moves.isolate),
    Rule("replacement-failed", lambda s: s.kind == "replacement_failed", always("rebuild")),
    Rule("rebuild-failed", lambda s: s.kind == "rebuild_failed", moves.rebuild_elsewhere),
    Rule("in-place-failed", lambda s: s.kind == "in_place_failed", always("rebuild")),
    Rule("suspended", lambda s: s.kind == "suspended" and s.policy.suspension_restart, moves.suspended),
    Rule("suspension-reported", lambda s: s.kind == "suspended", always("continue")),
    Rule(
        "checkpoint-unreadable",
        lambda s: s.failure_class == "checkpoint" and not s.policy.environment_only,
        moves.set_aside,
    ),
    Rule(
        "numeric",
        lambda s: s.failure_class == "numeric" and not s.policy.environment_only,
        always("restart_in_place", "one checkpoint further back"),
    ),
    Rule("unconditional", lambda s: s.policy.unconditional and s.kind == "exit", moves.unconditional),
    Rule("repeated-failure", is_repeated, always("fail", "it comes back identically, which is not chance")),
    Rule("confirm-once", asks_for_confirmation, moves.confirm),
    Rule("transient", lambda s: s.failure_class in s.policy.restart_on, moves.first_in_place),
    Rule("confirm-once", needs_confirmation, moves.confirm),
    Rule("not-restartable", lambda _: True, always("fail", "the policy restarts nothing of this class")),
)
"""The first that matches decides. `confirm-once` stands twice: an entry's own word comes before its class."""


def first_match(s: Situation) -> tuple[str, Move]:
    """Give the name of the rule that decides, and what it chooses."""
    for name, when, then in RULES:
        if when(s):
            return name, then(s)
    raise AssertionError("the last rule matches everything")


def propose(s: Situation) -> Proposal:
    """Let the first rule that matches choose, unless the attempt goes on or nothing may be restarted."""
    name, move = first_match(s)
    if s.goes_on:
        return Proposal(name, "continue", move.isolate, "")
    if move.action in RESTARTS and not s.policy.autorestart:
        return Proposal("not-restartable", "fail", move.isolate, "autorestart is not configured")
    return Proposal(name, *move)


def decide(policy: Policy, history: History) -> Decision:
    """Decide about the last incident of a phase's history.

    Of earlier incidents the recorded decision is what was done. Raises ValueError without an incident.
    """
    if not history:
        raise ValueError("decide needs a history with at least one incident")
    s = fold(policy, history[:-1])
    s.arrive(history[-1].incident)
    proposal = check(s, propose(s))
    rule, action, isolate, _ = proposal
    before = s.pool.gang
    gang = s.pool.next_gang(action, isolate)
    delay_s = backoff_s(s, proposal)
    resume_step = s.checkpoints.next_step(s.incident, rule) if action in RESTARTS else None
    s.settle(rule, action, isolate, gang, resume_step)
    return Decision(
        n=len(history),
        rule=rule,
        action=action,
        isolate=isolate,
        recreate=recreated(action, before, gang),
        placement=gang,
        delay_s=delay_s,
        resume_step=resume_step,
        counters=s.counters(),
        reason=sentence(s, proposal, before, delay_s, resume_step),
    )
