"""Facts: the frozen values by which all layers describe incidents, policies and decisions.

Nothing here computes, reads or writes. `None` always means unknown or not stated, never zero.
The terms are those of docs/recovery-policy.md; closed choices are `Literal` labels, because they
are in files and on the wire: a label, once shipped, never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

Kind = Literal[
    "exit",
    "completed",
    "suspended",
    "device_fault",
    "system_lost",
    "preempted",
    "cancelled",
    "replacement_failed",
    "rebuild_failed",
    "in_place_failed",
    "in_process",
    "handed_over",
]
FailureClass = Literal[
    "hardware",
    "network",
    "oom_device",
    "oom_host",
    "storage",
    "checkpoint",
    "numeric",
    "data",
    "compile",
    "config",
    "assertion",
    "user_code",
    "preempted",
    "cancelled",
    "collective_timeout",
    "port_in_use",
    "crash",
    "unknown",
    "none",
]
Severity = Literal["warning", "minor", "major", "critical"]
Blame = Literal["node", "device", "peer", "none"]
Stage = Literal["load", "compile", "train", "validate", "checkpoint", "finish"]
Mode = Literal["train", "train_and_eval", "eval"]
Recoverable = bool | Literal["confirm"] | None
Role = Literal["root", "cascade", "advice", "noise"]
Action = Literal[
    "restart_in_place",
    "replace_workers",
    "rebuild",
    "isolate_and_rebuild",
    "complete",
    "cancel",
    "fail",
    "continue",
]

Resume = Literal["auto", "never"]
LastSystem = Literal["fail", "keep"]
Gated = Literal["isolate", "fail"]
AnswerKind = Literal["approve", "reject", "change"]
Confidence = Literal["high", "low"]
Window = tuple[int, int]
"""Steps to be skipped, the first and the last."""

RESTARTS: frozenset[Action] = frozenset(
    ("restart_in_place", "replace_workers", "rebuild", "isolate_and_rebuild")
)
"""The actions after which another attempt follows."""

CONTINUES: frozenset[Action] = RESTARTS | {"continue"}
"""The actions that do not end the phase."""

AFTER_FAILURES: frozenset[Action] = RESTARTS | {"fail"}
"""The actions that a failure leads to."""

CHOICES: tuple[Action, ...] = ("restart_in_place", "rebuild", "fail")
"""The actions that a person may choose instead of a proposed one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The line that a classification rests on.

    `rule` is the id of the signature that matched it; `file` and `line` (from 1) say where it is;
    `hint` is advice for the user, empty if there is none.
    """

    rule: str
    text: str
    role: Role = "root"
    file: str | None = None
    line: int | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why a run failed, as the classifier sees it (`prefect-ft classify`).

    With a `confidence` of `low` its class forbids no restart by itself.
    """

    failure_class: FailureClass
    recoverable: Recoverable
    blame: Blame
    signature: str | None
    evidence: Evidence | None = None
    cascades: tuple[Evidence, ...] = ()
    confidence: Confidence = "high"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The answer of a user's advisor about a failure whose class was in doubt; `problem`: why there is none.

    `used` says that the incident has its class, `instead_of` the class that was ours.
    """

    failure_class: FailureClass | None = None
    line: str | None = None
    reason: str | None = None
    used: bool | None = None
    instead_of: FailureClass | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """What ended an attempt, a recovery action that failed, or a report during an attempt.

    Times are seconds since the phase began. `attempt` is known in a run and absent in a replay.
    `step` is the last verified checkpoint's step at that time; `seen_step` the highest one newly
    verified in this attempt and `baseline_step` the highest one verified before it, where the
    observer knows more than `step` says (a checkpoint that was verified and damaged later).
    `verified` are the steps of all checkpoints that can be resumed from at that time, without those set
    aside; where it is `None`, only the steps named by incidents are known. `started_from` is the step
    from which the attempt really started, 0: from scratch; where it is `None`, it is the one that was decided.
    `counted`: steps are the numbers of versions, since nothing states them; they cannot be compared with a target.
    `reached` is the last step that the failed rank reported, else the highest one that any rank did, and
    `reached_every` the distance between reported steps; `sample` is the data of a step that the rank named last.
    `systems` of a `handed_over` are the next pool.
    """

    t: float
    kind: Kind
    attempt: int | None = None
    worker: int | None = None
    system: str | None = None
    systems: tuple[str, ...] = ()
    blame: Blame | None = None
    step: int | None = None
    seen_step: int | None = None
    baseline_step: int | None = None
    verified: tuple[int, ...] | None = None
    started_from: int | None = None
    counted: bool | None = None
    reached: int | None = None
    reached_every: int | None = None
    sample: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    failure_class: FailureClass | None = None
    signature: str | None = None
    recoverable: Recoverable = None
    confidence: Confidence | None = None
    log: tuple[str, ...] = ()
    device: str | None = None
    code: str | None = None
    severity: Severity | None = None
    healed: bool | None = None
    reported: tuple[int, ...] | None = None
    stage: Stage | None = None
    stage_step: int | None = None
    evidence: Evidence | None = None
    advice: Advice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AtFault:
    """What attempts have proven of failures of one class: `data_or_code`, `system`, `checkpoint` or `chance`.

    `what` is a plain str: it may have been read from the journal of a version that knows more. `steps` are those at
    which it failed, `systems` those that reported it first, `checkpoint` the step of the one that is at fault.
    """

    what: str
    text: str
    failure_class: FailureClass | None = None
    steps: tuple[int, ...] = ()
    systems: tuple[str, ...] = ()
    checkpoint: int | None = None


class Counters(NamedTuple):
    """The budgets after a decision: folds over the phase's history, never stored or decremented.

    Made for each decision, and as a tuple in a third of the time that a frozen dataclass takes.
    """

    failures_without_progress: int = 0
    consecutive_suspensions: int = 0
    consecutive_unconditional: int = 0
    worker_replacements: int = 0
    preemptions: int = 0
    hand_overs: int = 0
    same_failure: int = 0
    same_device_fault: Mapping[str, int] = MappingProxyType({})
    suspects: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do about the `n`-th incident of a phase (from 1), by which rule, and why.

    `placement[i]` is the system of worker `i` in the attempt that follows (unchanged where none
    does). `recreate` holds the workers, by their new numbers, that are recreated; `isolate` the
    systems that this decision takes out of use. `resume_step` is the step of the checkpoint to
    resume from, `None` for from scratch. `delay_s` is the wait before the action. `skip_steps` are all the steps that
    the next attempt skips. `at_fault` is what the ended attempt has proven about it and those before it.
    """

    n: int
    rule: str
    action: Action
    reason: str
    placement: tuple[str, ...]
    counters: Counters
    isolate: tuple[str, ...] = ()
    recreate: tuple[int, ...] = ()
    delay_s: float = 0.0
    resume_step: int | None = None
    skip_steps: tuple[Window, ...] = ()
    at_fault: AtFault | None = None

    @property
    def stays_in_place(self) -> bool:
        """Whether the next attempt runs in the same workers."""
        return self.action == "restart_in_place"

    @property
    def interrupts_nothing(self) -> bool:
        """Whether the attempt keeps running."""
        return self.action == "continue"

    @property
    def completes(self) -> bool:
        """Whether the phase has completed."""
        return self.action == "complete"

    @property
    def cancels(self) -> bool:
        """Whether the run is cancelled."""
        return self.action == "cancel"

    @property
    def gives_up(self) -> bool:
        """Whether the phase has failed."""
        return self.action == "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A person's answer to a proposed decision, and who gave it.

    Of a `change`, `isolate` names the systems to take out of use, else `action` is what is done.
    """

    answer: AnswerKind
    by: str
    action: Action | None = None
    isolate: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One incident of a phase and the decision made about it; `None` while it is being made."""

    incident: Incident
    decision: Decision | None = None


History = tuple[Entry, ...]
"""All incidents of one phase in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything that `decide` may know besides the history: one phase's resolved settings.

    `systems` is the pool in order, `workers` the configured size of the gang.
    `isolated` are systems that were out of use when the phase began. `autorestart` off means that
    nothing is restarted. `environment_only` turns `checkpoint-unreadable`, `skip-steps`, `numeric` and
    `confirm-once` off (the annotations front door without unconditional retry). `last_system` says what
    happens where a system would be isolated without which there are too few.
    `skip_steps` is the length of the first window of steps to be skipped, 0: none are. `numeric_elsewhere`: a worker
    whose numbers went bad twice gets a spare once.
    A limit of `None` is no limit; `same_failure` is off with `stop_on_repeat=0`.
    """

    systems: tuple[str, ...]
    workers: int
    mode: Mode = "train"
    isolated: tuple[str, ...] = ()
    autorestart: bool = True
    max_num_restarts: int = 1
    min_num_systems: int = 1
    unconditional: bool = False
    restart_on: frozenset[FailureClass] = frozenset(
        (
            "network",
            "storage",
            "port_in_use",
            "collective_timeout",
            "crash",
            "oom_host",
            "hardware",
            "unknown",
            "data",
        )
    )
    rebuild_only: bool = False
    environment_only: bool = False
    restart_delay_s: float = 0.0
    max_restart_delay_s: float = 3600.0
    max_worker_replacements: int = 0
    stop_on_repeat: int = 2
    suspect_limit: int = 3
    user_induced_codes: frozenset[str] = frozenset(("80C98002", "80CB8002"))
    isolation_ttl_s: float | None = None
    max_suspension_restarts: int = 3
    max_preemptions: int | None = None
    max_hand_overs: int = 5
    skip_steps: int = 0
    max_skips: int = 3
    max_skips_per_phase: int = 10
    numeric_elsewhere: bool = False
    suspension_restart: bool = False
    elastic: bool = True
    target_step: int | None = None
    last_system: LastSystem = "fail"
