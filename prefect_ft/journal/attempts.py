"""A phase's timeline: its attempts, the decisions, and how its time was spent. A pure fold over its journal.

Every moment belongs to one part: `start` (until the first attempt ran, or something failed before it),
`productive` (work that the result rests on), `recompute` (work that was thrown away), for each failure `detect`
(until it was noticed), `queue` (until the scheduler had lent the run systems again), `heal` (of its device), `decide`
(until the decision was on disk, killing included),
`wait` (backoff) and `recover` (until the next attempt ran), and `stop` (from the last decision to the end; also from
when the ranks had completed until an orchestrator that came back noticed it: nothing had failed).
An incident without a decision, or one that was only reported, ended nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from prefect_ft.decide.incidents import places
from prefect_ft.journal.lines import end_of, history_of
from prefect_ft.journal.records import (
    NOT_RESUMED,
    AttemptLine,
    CheckpointLine,
    ComebackLine,
    DecisionLine,
    EndLine,
    HandOverLine,
    IncidentLine,
    Line,
    ProposedLine,
    TenureLine,
    WarningLine,
)
from prefect_ft.model import RESTARTS, Decision, Incident

PARTS = ("productive", "detect", "queue", "heal", "decide", "wait", "recover", "recompute", "start", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSummary:
    """One attempt; times are seconds since the phase began. `None` means unknown, or not yet.

    `outcome` is the kind of the incident that ended it; `running`, or the phase's status where the phase
    ended without one. `cause` is the id of the signature that matched the `evidence`. `steps_lost` are those
    that were, or would be, repeated. `unloaded_step` is that of a checkpoint that it was given, and began anew all the
    same: then `resume_step` is None.
    """

    number: int
    start: float
    end: float | None = None
    outcome: str = "running"
    failure_class: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    evidence: str | None = None
    cause: str | None = None
    blame: str | None = None
    rule: str | None = None
    action: str | None = None
    reason: str | None = None
    blamed: str | None = None
    resume_step: int | None = None
    unloaded_step: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    steps_lost: int | None = None
    stages_s: Mapping[str, float] = field(default_factory=dict)
    """How long each stage of the restart before it took; empty for the first attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span of a phase's time, in seconds since it began, and the part that it belongs to.

    `attempt` is the one that ran or had run last; 0: none.
    """

    part: str
    start: float
    end: float
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An incident and the decision about it: when it happened, was noticed and was decided.

    `attempt` is the one that ran or had run last; 0: none. `ended_attempt`: whether this ended it.
    """

    incident: Incident
    decision: Decision
    ended_t: float
    noticed_t: float
    decided_t: float
    attempt: int
    ended_attempt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """Where the workers of an attempt were, by their numbers."""

    attempt: int
    placement: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What happened in a phase; `spans` follow one another without gaps, from 0 to its end."""

    attempts: tuple[AttemptSummary, ...]
    gangs: tuple[Gang, ...]
    judged: tuple[Judged, ...]
    spans: tuple[Span, ...]


def timeline_of(lines: Sequence[Line], last_t: float) -> Timeline:
    """Follow a phase until `last_t`. Raises JournalError."""
    follower = _Follower(frozenset(_unresumed(lines)))
    incidents = [line for line in lines if isinstance(line, IncidentLine)]
    recorded = {line.n: (line, entry) for line, entry in zip(incidents, history_of(lines), strict=True)}
    proposed_t = {line.n: line.t for line in lines if isinstance(line, ProposedLine)}
    for line in lines:
        match line:
            case AttemptLine():
                follower.begin(line)
            case HandOverLine():
                follower.left_t = line.t
            case TenureLine():
                follower.lent_t = line.t
            case ComebackLine():
                follower.back_t = line.t
            case DecisionLine() if line.n in recorded:
                incident_line, entry = recorded[line.n]
                assert entry.decision is not None
                follower.decide(incident_line, entry.decision, line.t, proposed_t.get(line.n))
            case _:
                pass
    follower.finish(end_of(reversed(lines)), last_t)
    work = _worth(follower.attempts, _saves(lines), last_t)
    spans = sorted([*follower.spans, *work], key=lambda span: (span.start, span.end))
    return Timeline(
        attempts=tuple(follower.attempts),
        gangs=tuple(follower.gangs),
        judged=tuple(follower.judged),
        spans=tuple(spans),
    )


@dataclass(slots=True)
class _Follower:
    """The attempts and decisions so far, and the spans; the time since `since_t` belongs to `part`."""

    unresumed: frozenset[int]
    """The attempts that began anew although they were given a checkpoint."""
    attempts: list[AttemptSummary] = field(default_factory=list)
    gangs: list[Gang] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    """The spans of all parts but work, whose value is known only at the end."""
    part: str = "start"
    since_t: float = 0.0
    left_t: float | None = None
    """When the run was left to its next tenure; None: it was not, since an attempt began."""
    lent_t: float | None = None
    """When that tenure began; None: none has, since an attempt began."""
    back_t: float = 0.0
    """When an orchestrator came back last; 0: none did."""
    _wait_s: float = 0.0

    @property
    def attempt(self) -> int:
        return self.attempts[-1].number if self.attempts else 0

    def turn(self, t: float, part: str) -> float:
        """Assign the time from `t` on, or from the last change if that is later, to `part`; return that time."""
        t = max(t, self.since_t)
        if self.part == "wait":
            waited_t = min(t, self.since_t + self._wait_s)
            self._spend("wait", self.since_t, waited_t)
            self._spend("recover", waited_t, t)
        else:
            self._spend(self.part, self.since_t, t)
        self.part, self.since_t = part, t
        return t

    def _spend(self, part: str, start: float, end: float) -> None:
        if end > start and part != "work":
            self.spans.append(Span(part=part, start=start, end=end, attempt=self.attempt))

    def begin(self, line: AttemptLine) -> None:
        """Begin an attempt; the step that it resumes from shows what the one before it lost."""
        step, unloaded = line.resume_step, None
        if line.attempt in self.unresumed:
            step, unloaded = None, step
        self._count_loss(step)
        start = self.turn(line.t, "work")
        self.left_t = self.lent_t = None
        self.attempts.append(
            AttemptSummary(number=line.attempt, start=start, resume_step=step, unloaded_step=unloaded)
        )
        self.gangs.append(Gang(attempt=line.attempt, placement=line.placement))

    def decide(
        self, line: IncidentLine, decision: Decision, decided_t: float, proposed_t: float | None = None
    ) -> None:
        """End what ran, an attempt or a recovery. From `proposed_t` on a person was asked."""
        incident = line.incident
        is_open = bool(self.attempts) and self.attempts[-1].end is None
        ends = is_open and not decision.interrupts_nothing
        self.judged.append(
            Judged(
                incident=incident,
                decision=decision,
                ended_t=line.ended_t,
                noticed_t=line.t,
                decided_t=decided_t,
                attempt=self.attempt,
                ended_attempt=ends,
            )
        )
        if decision.interrupts_nothing:
            return
        waited_for = "stop" if decision.completes and self.back_t > line.ended_t else "detect"
        ended_t = self.turn(line.ended_t, waited_for)
        if self.lent_t is not None:
            self.turn(ended_t if self.left_t is None else self.left_t, "queue")
            self.turn(self.lent_t, waited_for)
        self.turn(line.t, "decide")
        asked_t = decided_t if proposed_t is None else proposed_t
        self.turn(asked_t - (line.healing_s or 0.0), "heal")
        self.turn(asked_t, "wait")
        self._wait_s = math.inf
        self.turn(decided_t, "wait" if decision.action in RESTARTS else "stop")
        self._wait_s = decision.delay_s
        if ends:
            self.attempts[-1] = replace(
                _ended(self.attempts[-1], incident, decision),
                end=ended_t,
                blamed=_blamed(incident, self.gangs[-1].placement),
                first_step=line.first_step,
                last_step=line.last_step,
            )
        if decision.gives_up or decision.cancels:
            self._count_loss(incident.step)

    def finish(self, end: EndLine | None, last_t: float) -> None:
        """Account for the time until now; an attempt without an end of its own ended with its phase."""
        self.turn(last_t, self.part)
        if end is not None and self.attempts and self.attempts[-1].end is None:
            self.attempts[-1] = replace(
                self.attempts[-1], end=self.since_t, outcome=end.status, reason=end.reason
            )

    def _count_loss(self, from_step: int | None) -> None:
        """Record what the last attempt lost if work continues, or would, at `from_step`."""
        last = self.attempts[-1] if self.attempts else None
        if last is not None and (reached := last.last_step) is not None:
            is_in_vain = last.number in self.unresumed and (from_step or 0) > reached
            lost = reached if is_in_vain else max(0, reached - (from_step or 0))
            self.attempts[-1] = replace(last, steps_lost=lost)


def _ended(attempt: AttemptSummary, incident: Incident, decision: Decision) -> AttemptSummary:
    return replace(
        attempt,
        outcome=incident.kind,
        failure_class=incident.failure_class,
        exit_code=incident.exit_code,
        signal=incident.signal,
        evidence=incident.evidence.text if incident.evidence is not None else None,
        cause=incident.evidence.rule if incident.evidence is not None else None,
        blame=incident.blame,
        rule=decision.rule,
        action=decision.action,
        reason=decision.reason,
    )


def _blamed(incident: Incident, gang: tuple[str, ...]) -> str | None:
    if incident.blame in ("peer", "none"):
        return None
    return ", ".join(places(incident, gang)) or None


def _unresumed(lines: Sequence[Line]) -> Iterator[int]:
    return (line.attempt for line in lines if isinstance(line, WarningLine) and line.what == NOT_RESUMED)


# -- what the work was worth ------------------------------------------------------------------------


def _saves(lines: Sequence[Line]) -> list[tuple[float, int]]:
    """Return when each checkpoint was written and its step, in the order of time."""
    return sorted((line.written_t, line.step) for line in lines if isinstance(line, CheckpointLine))


@dataclass(frozen=True, slots=True)
class _Kept:
    """A span of an attempt's work that led to a step."""

    step: int
    span: Span


def _worth(
    attempts: Sequence[AttemptSummary], saves: Sequence[tuple[float, int]], last_t: float
) -> Iterator[Span]:
    """Return the work as spans: what the result is based on, and what was lost.

    Work is kept up to the last checkpoint written in its attempt, until a later attempt begins below it. Where an
    attempt began anew and the next one is given a step above all that it saved, what was kept before it counts.
    """
    kept: list[_Kept] = []
    before: list[_Kept] = []
    untils: list[float] = []
    for attempt, follower in zip_longest(attempts, attempts[1:]):
        limit = -1 if attempt.resume_step is None else attempt.resume_step
        given = limit if attempt.unloaded_step is None else attempt.unloaded_step
        if given > max((each.step for each in kept), default=-1):
            kept = before or kept
        before = kept if attempt.unloaded_step is not None else before
        kept = [each for each in kept if each.step <= limit]
        next_t = follower.start if follower is not None else last_t
        until = attempt.end if attempt.end is not None else next_t
        untils.append(until)
        if follower is None and (attempt.end is None or attempt.action == "complete"):
            kept.append(_Kept(limit, _work("productive", attempt, attempt.start, until)))
        else:
            own = [(min(t, until), step) for t, step in saves if attempt.start <= t <= next_t]
            kept += _stretches(attempt, limit, own)
    for attempt, until in zip(attempts, untils, strict=True):
        yield from _split(attempt, until, [each.span for each in kept if each.span.attempt == attempt.number])


def _stretches(attempt: AttemptSummary, reached: int, saves: Sequence[tuple[float, int]]) -> Iterator[_Kept]:
    """Return an attempt's spans of work, each up to a checkpoint."""
    at = attempt.start
    for written_t, step in saves:
        if step > reached:
            yield _Kept(step, _work("productive", attempt, at, written_t))
            reached, at = step, written_t


def _split(attempt: AttemptSummary, until: float, kept: Sequence[Span]) -> Iterator[Span]:
    """Return an attempt's work: the kept spans, joined, and those between and after them."""
    at = attempt.start
    for start, end in _joined(kept):
        if start > at:
            yield _work("recompute", attempt, at, start)
        if end > start:
            yield _work("productive", attempt, start, end)
        at = max(at, end)
    if until > at:
        yield _work("recompute", attempt, at, until)


def _joined(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Join adjacent spans."""
    joined: list[tuple[float, float]] = []
    for span in spans:
        if joined and joined[-1][1] == span.start:
            joined[-1] = joined[-1][0], span.end
        else:
            joined.append((span.start, span.end))
    return joined


def _work(part: str, attempt: AttemptSummary, start: float, end: float) -> Span:
    return Span(part=part, start=start, end=end, attempt=attempt.number)
