"""The rules of docs/recovery-policy.md: each row has everything about its rule.

Owns the rows, their order and their names. `conditions` has what a condition reads, `moves` what a rule can
choose; the folds apply effects. No other module names a rule: it asks `TABLE` by the name, or imports
the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from prefect_ft.decide import moves
from prefect_ft.decide.conditions import (
    any_incident,
    asks_for_confirmation,
    is_any_class_restarted,
    is_doubted,
    is_healable,
    is_node_lost,
    is_non_recoverable,
    is_repeated,
    is_repeated_fault,
    is_skippable,
    is_unhealed,
    needs_confirmation,
)
from prefect_ft.decide.effects import ALSO_STOPPED, NOTHING, ONLY_A_FAILURE, Effects
from prefect_ft.decide.moves import MAX_UNCONDITIONAL, Move, always
from prefect_ft.decide.situation import Situation
from prefect_ft.model import FailureClass, Kind

RuleName = Literal[
    "completed",
    "cancelled",
    "fault-warning",
    "in-process",
    "non-recoverable",
    "preempted",
    "handed-over",
    "fault-user-induced",
    "fault-repeated",
    "fault-healed",
    "fault-heal-failed",
    "fault-critical",
    "node-lost",
    "replacement-failed",
    "rebuild-failed",
    "in-place-failed",
    "suspended",
    "suspension-reported",
    "checkpoint-unreadable",
    "skip-steps",
    "numeric",
    "unconditional",
    "repeated-failure",
    "confirm-once",
    "transient",
    "not-restartable",
    "max-restarts",
    "min-systems",
]
"""The names, which are in journals, so they are only added to.

A `Decision` holds a plain str: it may have been read from the journal of a version that knows other rules.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row: it matches incidents of some kinds where `when` holds of them, and `then` chooses.

    Of exits it matches those of some `classes`; `None`: of any. Without kinds it matches nothing: an after-check
    gives its name to what it stops. Without `needs_autorestart` it restarts also where the policy restarts nothing.
    `standing` is how a reason states its own budget. `meaning`
    explains the decision to a reader who does not know the policy; `meaning_of_end` does where it gives up, if that
    is something else.
    """

    name: RuleName
    kinds: tuple[Kind, ...] = ()
    classes: tuple[FailureClass, ...] | None = None
    when: Callable[[Situation], bool] = any_incident
    then: Callable[[Situation], Move]
    effects: Effects = ONLY_A_FAILURE
    needs_autorestart: bool = True
    standing: Callable[[Situation], str] | None = None
    meaning: str
    meaning_of_end: str | None = None

    def is_about(self, kind: Kind, failure_class: FailureClass | None) -> bool:
        """Whether it matches incidents of a kind, and exits of a class, for which `when` holds."""
        is_class = kind != "exit" or self.classes is None or failure_class in self.classes
        return is_class and kind in self.kinds


def suspensions(s: Situation) -> str:
    """Return how many restarts upon suspension there have been."""
    limit = s.policy.max_suspension_restarts
    return f"restart upon suspension {s.budgets.consecutive_suspensions} of {limit} in a row"


def preemptions(s: Situation) -> str:
    """Return how many restarts after preemption there have been."""
    limit_known = "" if s.policy.max_preemptions is None else f" of {s.policy.max_preemptions}"
    return f"restart after preemption {s.budgets.preemptions}{limit_known}"


def hand_overs(s: Situation) -> str:
    """Return how many allocations have ended without progress."""
    return f"hand-over {s.budgets.hand_overs} of {s.policy.max_hand_overs} without progress"


def skips(s: Situation) -> str:
    """Return how many restarts have skipped steps."""
    return f"skip {s.skipping.since_progress} of {s.policy.max_skips}"


def faults_within_a_day(s: Situation) -> str:
    """Return how often a device reported the same code."""
    return f"{s.same_device_fault} times within a day"


EXIT: tuple[Kind, ...] = ("exit",)
DEVICE_FAULT: tuple[Kind, ...] = ("device_fault",)

CONFIRM_ONCE = Rule(
    name="confirm-once",
    kinds=EXIT,
    when=asks_for_confirmation,
    then=moves.confirm,
    effects=Effects(budget="confirmed_since_progress"),
    meaning="most likely the program is at fault, but it may have been chance: one restart shows which",
    meaning_of_end="the restart that was to tell whether it was chance failed in the same way, so the program or its "
    "setup is at fault",
)
NOT_RESTARTABLE = Rule(
    name="not-restartable",
    kinds=get_args(Kind),
    then=always("fail", "the policy restarts nothing of this class"),
    meaning="the job's policy restarts nothing after a failure of this kind",
)
MAX_RESTARTS = Rule(
    name="max-restarts",
    then=always("fail"),
    effects=Effects(counted=ALSO_STOPPED),
    meaning="as many failures without progress as the job allows have been; more restarts would only cost",
)
MIN_SYSTEMS = Rule(
    name="min-systems",
    then=always("fail"),
    effects=Effects(counted=ALSO_STOPPED),
    meaning="too few systems are left that can be used",
)

RULES: tuple[Rule, ...] = (
    Rule(
        name="completed",
        kinds=("completed",),
        then=always("complete"),
        meaning="the training has completed",
    ),
    Rule(
        name="cancelled",
        kinds=("cancelled", "exit"),
        classes=("cancelled",),
        then=always("cancel"),
        meaning="cancellation was requested",
    ),
    Rule(
        name="fault-warning",
        kinds=DEVICE_FAULT,
        when=lambda s: s.incident.severity == "warning",
        then=always("continue"),
        meaning="a warning is written down; nothing has failed yet",
    ),
    Rule(
        name="in-process",
        kinds=("in_process",),
        then=always("continue"),
        meaning="the ranks have recovered by themselves",
    ),
    Rule(
        name="non-recoverable",
        kinds=EXIT,
        when=is_non_recoverable,
        then=always("fail", "a restart would not help"),
        meaning="a failure of this kind comes back at every start, so a restart would not help",
    ),
    replace(CONFIRM_ONCE, when=is_doubted),
    Rule(
        name="preempted",
        kinds=("preempted", "exit"),
        classes=("preempted",),
        then=moves.preempted,
        effects=Effects(counted=NOTHING, budget="preemptions"),
        standing=preemptions,
        meaning="the scheduler took the machine, which says nothing against the training and uses up no restart",
    ),
    Rule(
        name="handed-over",
        kinds=("handed_over",),
        then=moves.handed_over,
        effects=Effects(counted=NOTHING),
        needs_autorestart=False,
        standing=hand_overs,
        meaning="the allocation ends or grows: training continues in the next one, and no restart is used up",
        meaning_of_end="too many allocations in a row ended without progress",
    ),
    Rule(
        name="fault-user-induced",
        kinds=DEVICE_FAULT,
        when=lambda s: is_repeated_fault(s) and s.incident.code in s.policy.user_induced_codes,
        then=always("rebuild", "the code means that the program or its data caused it"),
        standing=faults_within_a_day,
        meaning="the device reports a fault that programs cause, so the same systems get new workers",
    ),
    Rule(
        name="fault-repeated",
        kinds=DEVICE_FAULT,
        when=is_repeated_fault,
        then=moves.isolate,
        standing=faults_within_a_day,
        meaning="the same device reported the same fault too often within a day, so its system is no longer used",
    ),
    Rule(
        name="fault-healed",
        kinds=DEVICE_FAULT,
        when=lambda s: is_healable(s) and s.incident.healed is True,
        then=always("restart_in_place"),
        effects=Effects(counted=NOTHING),
        standing=lambda _: "costs nothing",
        meaning="the device has been repaired, so the same workers can continue, and it uses up no restart",
    ),
    Rule(
        name="fault-heal-failed",
        kinds=DEVICE_FAULT,
        when=is_unhealed,
        then=moves.isolate,
        meaning="the device could not be repaired, so its system is no longer used",
    ),
    Rule(
        name="fault-critical",
        kinds=DEVICE_FAULT,
        when=lambda s: s.incident.severity == "critical",
        then=moves.isolate,
        meaning="a device with such a fault cannot go on, so its system is no longer used",
    ),
    Rule(
        name="node-lost",
        kinds=("system_lost", "exit"),
        classes=("hardware",),
        when=is_node_lost,
        then=moves.isolate,
        meaning="the system is gone, or the output of the training blames it, so the run continues without it",
    ),
    Rule(
        name="replacement-failed",
        kinds=("replacement_failed",),
        then=always("rebuild"),
        meaning="the affected workers could not be replaced, so all are created again",
    ),
    Rule(
        name="rebuild-failed",
        kinds=("rebuild_failed",),
        then=moves.rebuild_elsewhere,
        meaning="the workers could not be made, so that is tried again, without the system that failed if known",
    ),
    Rule(
        name="in-place-failed",
        kinds=("in_place_failed",),
        then=always("rebuild"),
        meaning="a worker is gone, so nothing can be restarted in it: all workers are created again",
    ),
    Rule(
        name="suspended",
        kinds=("suspended",),
        when=lambda s: s.policy.suspension_restart,
        then=moves.suspended,
        effects=Effects(counted=NOTHING, budget="consecutive_suspensions"),
        standing=suspensions,
        meaning="nothing moved any more; the same workers restart, up to a limit in a row",
    ),
    Rule(
        name="suspension-reported",
        kinds=("suspended",),
        then=always("continue"),
        meaning="the job wants hangs to be reported and not ended",
    ),
    Rule(
        name="checkpoint-unreadable",
        kinds=EXIT,
        classes=("checkpoint",),
        when=is_any_class_restarted,
        then=moves.set_aside,
        effects=Effects(step_back="set_aside"),
        meaning="the checkpoint cannot be read, so it is set aside and an older one is taken",
    ),
    Rule(
        name="skip-steps",
        kinds=EXIT,
        classes=("numeric", "data"),
        when=is_skippable,
        then=moves.skip,
        effects=Effects(budget="skips", step_back="to_start"),
        standing=skips,
        meaning="it failed at the same step again, so the steps before it are skipped in case their data is bad",
    ),
    Rule(
        name="numeric",
        kinds=EXIT,
        classes=("numeric",),
        when=is_any_class_restarted,
        then=moves.step_back,
        effects=Effects(step_back="below_last"),
        meaning="from the same checkpoint the numbers would most likely go bad again, so one further back is taken",
        meaning_of_end="the numbers went bad at the same step wherever the run started, so its data or its code is bad",
    ),
    Rule(
        name="unconditional",
        kinds=EXIT,
        when=lambda s: s.policy.unconditional,
        then=moves.unconditional,
        effects=Effects(budget="consecutive_unconditional"),
        standing=lambda s: (
            f"unconditional restart {s.budgets.consecutive_unconditional} of {MAX_UNCONDITIONAL}"
        ),
        meaning="the job wants new workers whatever has failed, only so many times without progress",
    ),
    Rule(
        name="repeated-failure",
        kinds=EXIT,
        classes=("crash", "unknown", "data"),
        when=is_repeated,
        then=always("fail", "it comes back identically, which is not chance"),
        standing=lambda s: f"{s.budgets.same_failure} times in a row since step {s.incident.step}",
        meaning="it came back in the same words at the same place, so it is not chance: it would come back again",
    ),
    CONFIRM_ONCE,
    Rule(
        name="transient",
        kinds=EXIT,
        when=lambda s: s.incident.failure_class in s.policy.restart_on,
        then=moves.first_in_place,
        effects=Effects(budget="transient_since_progress"),
        meaning="failures of this kind are often chance: first the same workers start again, and if it fails again "
        "without progress, new ones",
    ),
    replace(CONFIRM_ONCE, classes=("user_code", "oom_device", "config"), when=needs_confirmation),
    NOT_RESTARTABLE,
    MAX_RESTARTS,
    MIN_SYSTEMS,
)
"""The first that matches decides. `confirm-once` is there three times: a doubt about a class comes before all other
rules of exits, and an entry's own setting before its class."""

Asked = tuple[tuple[Rule, Callable[[Situation], bool], Callable[[Situation], Move]], ...]
"""The rules for an incident of a known kind and class, each with its `when` and `then`."""


class _EffectsByName(dict[str, Effects]):
    """The effects by name: by an unknown one, a restart is a counted failure and nothing else."""

    def __missing__(self, _: str) -> Effects:
        return ONLY_A_FAILURE


class Table:
    """Rules in order; which of them decides, and the facts about one by its name.

    An unknown name comes from a journal of another version: `effects` has the defaults for it, and
    its meaning is the name itself.
    """

    __slots__ = ("_meanings", "_meanings_of_ends", "_of_exits", "_of_kinds", "effects")

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._of_kinds: Mapping[Kind, Asked] = {kind: _asked(rules, kind) for kind in get_args(Kind)}
        self._of_exits: Mapping[FailureClass | None, Asked] = {
            failure_class: _asked(rules, "exit", failure_class) for failure_class in get_args(FailureClass)
        }
        self.effects: Mapping[str, Effects] = _EffectsByName((rule.name, rule.effects) for rule in rules)
        self._meanings: Mapping[str, str] = {rule.name: rule.meaning for rule in rules}
        self._meanings_of_ends: Mapping[str, str] = {
            rule.name: rule.meaning_of_end for rule in rules if rule.meaning_of_end is not None
        }

    def first_match(self, s: Situation) -> tuple[Rule, Move]:
        """Return the rule that decides, and what it chooses."""
        kind, failure_class = s.incident.kind, s.incident.failure_class
        for rule, when, then in self._of_exits[failure_class] if kind == "exit" else self._of_kinds[kind]:
            if when(s):
                return rule, then(s)
        raise AssertionError("the rule for everything else matches everything")

    def meaning_of(self, name: str, *, gives_up: bool = False) -> str:
        """Return why a rule decides so, for a reader who does not know the policy."""
        meaning = self._meanings.get(name, name)
        return self._meanings_of_ends.get(name, meaning) if gives_up else meaning


def _asked(rules: tuple[Rule, ...], kind: Kind, failure_class: FailureClass | None = None) -> Asked:
    """Choose the rules that match a kind, and of exits a class."""
    return tuple((rule, rule.when, rule.then) for rule in rules if rule.is_about(kind, failure_class))


TABLE = Table(RULES)
