"""The decision about an incident: the table of docs/recovery-policy.md, row by row, in its order.

Owns which rule decides. What rules can choose is in `moves`, what a restart has to pass in
`after_checks`, what is counted in `budgets`, who stands where in `placement`, from which step to go
on in `resume`. Pure: the same history gives the same decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, get_args

from prefect_ft.decide import moves
from prefect_ft.decide.after_checks import Proposal, backoff_s, check
from prefect_ft.decide.gate import answered
from prefect_ft.decide.moves import Move, always
from prefect_ft.decide.placement import recreated
from prefect_ft.decide.reasons import sentence
from prefect_ft.decide.situation import Situation, fold
from prefect_ft.model import RESTARTS, Answer, Decision, FailureClass, History, Incident, Kind, Policy

SAME_DEVICE_FAULTS = 3


class Rule(NamedTuple):
    """One row of the table: it matches incidents of some kinds, where `when` holds of them.

    Of exits it matches those of some classes; `None`: of any.
    """

    name: str
    kinds: tuple[Kind, ...]
    when: Callable[[Situation], bool]
    then: Callable[[Situation], Move]
    classes: tuple[FailureClass, ...] | None = None


def anyhow(_: Situation) -> bool:
    """Match every incident of the rule's kinds."""
    return True


def is_non_recoverable(s: Situation) -> bool:
    """Say whether no restart can help; a configuration that has worked is not one that is wrong."""
    if s.policy.unconditional:
        return False
    wrong = s.incident.failure_class in ("compile", "assertion") or (
        s.incident.failure_class == "config" and not s.progress
    )
    return wrong or s.incident.recoverable is False


def is_repeated_fault(s: Situation) -> bool:
    """Say whether a device reported the same code too often within a day."""
    return s.same_device_fault >= SAME_DEVICE_FAULTS


def is_healable(s: Situation) -> bool:
    """Say whether it is a device fault that healing can help against."""
    return s.incident.severity in ("minor", "major")


def is_unhealed(s: Situation) -> bool:
    """Say whether healing a device failed, or was not tried where it could have helped."""
    return s.incident.healed is False or is_healable(s)


def is_node_lost(s: Situation) -> bool:
    """Say whether a system is gone, or a rank's own output puts the blame on it."""
    return s.incident.kind == "system_lost" or bool(s.blamed)


def is_any_class_restarted(s: Situation) -> bool:
    """Say whether other failures than those of the environment are restarted."""
    return not s.policy.environment_only


def is_repeated(s: Situation) -> bool:
    """Say whether a failure came back identically too often; a limit of 0 is none."""
    return 0 < s.policy.stop_on_repeat < s.budgets.same_failure


def asks_for_confirmation(s: Situation) -> bool:
    """Say whether the catalogue's entry asks for it, whatever the class."""
    return s.incident.recoverable == "confirm" and not s.policy.environment_only


def needs_confirmation(s: Situation) -> bool:
    """Say whether it may have been chance; a wrong configuration that has worked was none."""
    return (s.incident.failure_class != "config" or s.progress) and not s.policy.environment_only


EXIT: tuple[Kind, ...] = ("exit",)
DEVICE_FAULT: tuple[Kind, ...] = ("device_fault",)

RULES: tuple[Rule, ...] = (
    Rule("completed", ("completed",), anyhow, always("complete")),
    Rule("cancelled", ("cancelled", "exit"), anyhow, always("cancel"), ("cancelled",)),
    Rule("fault-warning", DEVICE_FAULT, lambda s: s.incident.severity == "warning", always("continue")),
    Rule("in-process", ("in_process",), anyhow, always("continue")),
    Rule("non-recoverable", EXIT, is_non_recoverable, always("fail", "a restart would not help")),
    Rule("preempted", ("preempted", "exit"), anyhow, moves.preempted, ("preempted",)),
    Rule(
        "fault-user-induced",
        DEVICE_FAULT,
        lambda s: is_repeated_fault(s) and s.incident.code in s.policy.user_induced_codes,
        always("rebuild", "the code means that the program or its data caused it"),
    ),
    Rule("fault-repeated", DEVICE_FAULT, is_repeated_fault, moves.isolate),
    Rule(
        "fault-healed",
        DEVICE_FAULT,
        lambda s: is_healable(s) and s.incident.healed is True,
        always("restart_in_place"),
    ),
    Rule("fault-heal-failed", DEVICE_FAULT, is_unhealed, moves.isolate),
    Rule("fault-critical", DEVICE_FAULT, lambda s: s.incident.severity == "critical", moves.isolate),
    Rule("node-lost", ("system_lost", "exit"), is_node_lost, moves.isolate, ("hardware",)),
    Rule("replacement-failed", ("replacement_failed",), anyhow, always("rebuild")),
    Rule("rebuild-failed", ("rebuild_failed",), anyhow, moves.rebuild_elsewhere),
    Rule("in-place-failed", ("in_place_failed",), anyhow, always("rebuild")),
    Rule("suspended", ("suspended",), lambda s: s.policy.suspension_restart, moves.suspended),
    Rule("suspension-reported", ("suspended",), anyhow, always("continue")),
    Rule("checkpoint-unreadable", EXIT, is_any_class_restarted, moves.set_aside, ("checkpoint",)),
    Rule(
        "numeric",
        EXIT,
        is_any_class_restarted,
        always("restart_in_place", "one checkpoint further back"),
        ("numeric",),
    ),
    Rule("unconditional", EXIT, lambda s: s.policy.unconditional, moves.unconditional),
    Rule(
        "repeated-failure",
        EXIT,
        is_repeated,
        always("fail", "it comes back identically, which is not chance"),
        ("crash", "unknown", "data"),
    ),
    Rule("confirm-once", EXIT, asks_for_confirmation, moves.confirm),
    Rule("transient", EXIT, lambda s: s.incident.failure_class in s.policy.restart_on, moves.first_in_place),
    Rule("confirm-once", EXIT, needs_confirmation, moves.confirm, ("user_code", "oom_device", "config")),
    Rule(
        "not-restartable", get_args(Kind), anyhow, always("fail", "the policy restarts nothing of this class")
    ),
)
"""The first that matches decides. `confirm-once` stands twice: an entry's own word comes before its class."""

Asked = tuple[tuple[str, Callable[[Situation], bool], Callable[[Situation], Move]], ...]
"""What is asked of an incident whose kind and class are known: name, `when` and `then` of each rule."""


def rules_of(kind: Kind, failure_class: FailureClass | None = None) -> Asked:
    """Choose the rules that match a kind, and of exits a class."""
    return tuple(
        (rule.name, rule.when, rule.then)
        for rule in RULES
        if kind in rule.kinds and (kind != "exit" or rule.classes is None or failure_class in rule.classes)
    )


RULES_OF: Mapping[Kind, Asked] = {kind: rules_of(kind) for kind in get_args(Kind)}
RULES_OF_EXITS: Mapping[FailureClass | None, Asked] = {
    failure_class: rules_of("exit", failure_class) for failure_class in get_args(FailureClass)
}


def first_match(s: Situation) -> tuple[str, Move]:
    """Give the name of the rule that decides, and what it chooses."""
    kind, failure_class = s.incident.kind, s.incident.failure_class
    for name, when, then in RULES_OF_EXITS[failure_class] if kind == "exit" else RULES_OF[kind]:
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
    return Proposal(name, move.action, move.isolate, move.why)


class InTurn:
    """Decides about a phase's incidents in turn, each decision taken for carried out; nothing is folded twice."""

    __slots__ = ("_number", "_situation")

    def __init__(self, policy: Policy, history: History = ()) -> None:
        """`history` is what has been decided before."""
        self._situation = fold(policy, history)
        self._number = len(history)

    def decide(self, incident: Incident, answer: Answer | None = None) -> Decision:
        """Decide about the next incident; `answer` is what a person says to that."""
        s = self._situation
        self._number += 1
        s.arrive(incident)
        proposal = check(s, propose(s))
        return _settled(s, proposal if answer is None else answered(s, proposal, answer), self._number)


def decide(policy: Policy, history: History) -> Decision:
    """Decide about the last incident of a phase's history.

    Of earlier incidents the recorded decision is what was done. Raises ValueError without an incident.
    """
    return _before_last(policy, history).decide(history[-1].incident)


def decide_as_told(policy: Policy, history: History, answer: Answer) -> Decision:
    """Decide as `decide`, and then as a person answered to that."""
    return _before_last(policy, history).decide(history[-1].incident, answer)


def _before_last(policy: Policy, history: History) -> InTurn:
    if not history:
        raise ValueError("decide needs a history with at least one incident")
    return InTurn(policy, history[:-1])


def _settled(s: Situation, proposal: Proposal, number: int) -> Decision:
    """Let a proposal take effect, and give it as a decision."""
    rule, action, isolate = proposal.rule, proposal.action, proposal.isolate
    before = s.pool.gang
    gang = s.pool.next_gang(action, isolate)
    recreate = recreated(action, before, gang)
    delay_s = backoff_s(s, proposal)
    resume_step = s.checkpoints.next_step(s.incident, rule) if action in RESTARTS else None
    s.settle(rule, action, isolate, gang, resume_step)
    return Decision(
        n=number,
        rule=rule,
        action=action,
        isolate=isolate,
        recreate=recreate,
        placement=gang,
        delay_s=delay_s,
        resume_step=resume_step,
        counters=s.counters(),
        reason=sentence(s, proposal, before, recreate, delay_s=delay_s, resume_step=resume_step),
    )
