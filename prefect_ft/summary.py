"""What a phase cost and what it was lost to: a pure fold over its journal.

Time is split so that the parts add up to `total`: `start` (until the first attempt ran, or something failed
before it), `productive` (work that the result rests on), `recompute` (work that was thrown away), for each
failure `detect` (until it was noticed), `heal` (of its device), `decide` (until the decision was on disk, killing
included),
`wait` (backoff) and `recover` (until the next attempt ran), and `stop` (from the last decision to the end).
An incident that was not decided about, or was only reported, ended nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any

from prefect_ft.decide.incidents import places
from prefect_ft.journal import Line, history_of
from prefect_ft.model import RESTARTS, Decision, Incident
from prefect_ft.stages import stages_by_attempt

PARTS = ("productive", "detect", "heal", "decide", "wait", "recover", "recompute", "start", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSummary:
    """One attempt; times are seconds since the phase began. What is not known, or not yet, is `None`.

    `outcome` is the kind of the incident that ended it; `running`, or the phase's status where the phase
    ended without one. `cause` is the id of the signature that took the `evidence`. `steps_lost` are those
    that were, or would be, done again.
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
    first_step: int | None = None
    last_step: int | None = None
    steps_lost: int | None = None
    stages_s: Mapping[str, float] = field(default_factory=dict)
    """How long each stage of the restart took that led to it; of the first attempt there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangSummary:
    """One verdict that ranks hang. `response` is what was to follow, `restart`, `report` or `shadow`.

    `went_on`: whether they got on again by themselves, `None` where that could not be seen. `diagnosis` names the
    file beside the journal.
    """

    t: float
    attempt: int
    response: str
    blamed_rank: int | None
    evidence: str
    where: str | None
    diagnosis: str | None
    went_on: bool | None
    after_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSummary:
    """What a worker last told of the next restart: ranks that wait for it, and what that costs.

    `why_cold` says why ranks start cold although they were to start warm.
    """

    worker: int
    parked: int
    modules: int
    memory_mb: int
    why_cold: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSummary:
    """What summary.json holds.

    `false_alarm_ratio` is the share of verdicts after which the run went on by itself, of those of which that could
    be seen; `None`: of none.
    """

    phase: str
    run: str
    job: str
    status: str
    reason: str
    restarts: dict[str, int]
    attempts: tuple[AttemptSummary, ...]
    time_s: dict[str, float]
    effective_ratio: float | None
    isolated_systems: tuple[str, ...]
    final_step: int | None
    hangs: tuple[HangSummary, ...] = ()
    false_alarm_ratio: float | None = None
    stragglers: tuple[int, ...] = ()
    warm: tuple[WarmSummary, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Give the document, `class` under its own name."""
        document = asdict(self)
        for attempt in document["attempts"]:
            attempt["class"] = attempt.pop("failure_class")
        return document


def summarise(lines: Sequence[Line], now_t: float | None = None) -> PhaseSummary:
    """Sum a phase up; `now_t` is the time that it has reached, if it still runs. Raises JournalError."""
    head: Line = next((line for line in lines if line["type"] == "phase"), {})
    end: Line = next((line for line in reversed(lines) if line["type"] == "end"), {})
    last_t = max([float(line["t"]) for line in lines] + ([now_t] if now_t is not None else []), default=0.0)
    course = _follow(lines, last_t)
    stages = stages_by_attempt(lines)
    productive, recompute = _worth(course.attempts, _saves(lines), last_t)
    spent_s = {**course.spent_s, "productive": productive, "recompute": recompute}
    return PhaseSummary(
        phase=head.get("phase", ""),
        run=head.get("run", ""),
        job=head.get("job", ""),
        status=end.get("status", "running"),
        reason=end.get("reason", ""),
        restarts=dict(Counter(each.action for each in course.decisions if each.action in RESTARTS)),
        attempts=tuple(replace(each, stages_s=stages.get(each.number, {})) for each in course.attempts),
        time_s={"total": round(last_t, 3), **{part: round(spent_s[part], 3) for part in PARTS}},
        effective_ratio=round(productive / last_t, 4) if last_t else None,
        isolated_systems=tuple(dict.fromkeys(name for each in course.decisions for name in each.isolate)),
        hangs=(hangs := tuple(_hangs(lines))),
        false_alarm_ratio=_false_alarms(hangs),
        stragglers=tuple(dict.fromkeys(line["rank"] for line in lines if line["type"] == "straggler")),
        final_step=_final_step(lines, course.attempts),
        warm=_warm(lines),
    )


def _warm(lines: Sequence[Line]) -> tuple[WarmSummary, ...]:
    last = {line["worker"]: line for line in lines if line["type"] == "warm"}
    return tuple(
        WarmSummary(
            worker=worker,
            parked=line["parked"],
            modules=line["modules"],
            memory_mb=line["memory_kb"] >> 10,
            why_cold=line["why_cold"],
        )
        for worker, line in sorted(last.items())
    )


# -- hangs ------------------------------------------------------------------------------------------


def _hangs(lines: Sequence[Line]) -> Iterator[HangSummary]:
    over = {line["n"]: line for line in lines if line["type"] == "hang-over"}
    for line in lines:
        if line["type"] == "hang":
            end = over.get(line["n"], {})
            yield HangSummary(
                t=line["t"],
                attempt=line["attempt"],
                response=line["response"],
                blamed_rank=line.get("blamed"),
                evidence="; ".join(dict.fromkeys(sign["text"] for sign in line["evidence"])),
                where=line.get("where"),
                diagnosis=line.get("diagnosis"),
                went_on=end.get("went_on"),
                after_s=end.get("after_s"),
            )


def _false_alarms(hangs: Sequence[HangSummary]) -> float | None:
    known = [hang.went_on for hang in hangs if hang.went_on is not None]
    return round(sum(known) / len(known), 4) if known else None


# -- the phase's course -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Course:
    """The attempts and decisions so far, and where the time went; from `since_t` it goes to `part`."""

    attempts: list[AttemptSummary] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    spent_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*PARTS, "work"), 0.0))
    part: str = "start"
    since_t: float = 0.0
    _wait_s: float = 0.0
    _gang: tuple[str, ...] = ()

    def turn(self, t: float, part: str) -> float:
        """Let time go to `part` from `t` on, or from the last turn if that is later; give that time."""
        t = max(t, self.since_t)
        passed_s = t - self.since_t
        if self.part == "wait":
            waited_s = min(passed_s, self._wait_s)
            self.spent_s["wait"] += waited_s
            self.spent_s["recover"] += passed_s - waited_s
        else:
            self.spent_s[self.part] += passed_s
        self.part, self.since_t = part, t
        return t

    def begin(self, line: Line) -> None:
        """Begin an attempt; from where it resumes tells what the one before it lost."""
        resume_step = line["resume_step"]
        self._count_loss(resume_step)
        start = self.turn(line["t"], "work")
        self.attempts.append(AttemptSummary(number=line["attempt"], start=start, resume_step=resume_step))
        self._gang = tuple(line["placement"])

    def decide(self, incident: Incident, line: Line, decision: Decision, decided_t: float) -> None:
        """End what ran, an attempt or a recovery; `line` is the incident's."""
        self.decisions.append(decision)
        if decision.action == "continue":
            return
        ended_t = self.turn(line["ended_t"], "detect")
        self.turn(line["t"], "decide")
        self.turn(decided_t, "wait" if decision.action in RESTARTS else "stop")
        healing_s = line.get("healing_s") or 0.0
        self.spent_s["decide"] -= healing_s
        self.spent_s["heal"] += healing_s
        self._wait_s = decision.delay_s
        if self.attempts and self.attempts[-1].end is None:
            self.attempts[-1] = replace(
                _ended(self.attempts[-1], incident, decision),
                end=ended_t,
                blamed=_blamed(incident, self._gang),
                first_step=line.get("first_step"),
                last_step=line.get("last_step"),
            )
        if decision.action in ("fail", "cancel"):
            self._count_loss(incident.step)

    def finish(self, end: Line | None, last_t: float) -> None:
        """Account for the time until now; an attempt that nothing was said about ended with its phase."""
        self.turn(last_t, self.part)
        if end is not None and self.attempts and self.attempts[-1].end is None:
            self.attempts[-1] = replace(
                self.attempts[-1], end=self.since_t, outcome=end["status"], reason=end["reason"]
            )

    def _count_loss(self, from_step: int | None) -> None:
        """Note what the last attempt lost if work goes on, or would, at `from_step`."""
        if self.attempts and (reached := self.attempts[-1].last_step) is not None:
            lost = max(0, reached - (from_step or 0))
            self.attempts[-1] = replace(self.attempts[-1], steps_lost=lost)


def _follow(lines: Sequence[Line], last_t: float) -> _Course:
    course = _Course()
    told = [line for line in lines if line["type"] == "incident"]
    recorded = dict(zip((line["n"] for line in told), zip(told, history_of(lines), strict=True), strict=True))
    end = None
    for line in lines:
        match line["type"]:
            case "attempt":
                course.begin(line)
            case "decision" if line["n"] in recorded:
                incident_line, entry = recorded[line["n"]]
                assert entry.decision is not None
                course.decide(entry.incident, incident_line, entry.decision, line["t"])
            case "end":
                end = line
            case _:
                pass
    course.finish(end, last_t)
    return course


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


# -- what the work was worth ------------------------------------------------------------------------


def _saves(lines: Sequence[Line]) -> list[tuple[float, int]]:
    """Give when each checkpoint was written and its step, in the order of time."""
    return sorted((line["written_t"], line["step"]) for line in lines if line["type"] == "checkpoint")


def _worth(
    attempts: Sequence[AttemptSummary], saves: Sequence[tuple[float, int]], last_t: float
) -> tuple[float, float]:
    """Give the seconds of work that the result rests on, and those that were thrown away.

    Work is kept up to the last checkpoint written in its attempt, until a later attempt begins below it.
    """
    kept: list[tuple[int, float]] = []
    worked_s = 0.0
    for attempt, follower in zip_longest(attempts, attempts[1:]):
        limit = -1 if attempt.resume_step is None else attempt.resume_step
        kept = [(step, seconds) for step, seconds in kept if step <= limit]
        next_t = follower.start if follower is not None else last_t
        until = attempt.end if attempt.end is not None else next_t
        worked_s += until - attempt.start
        if follower is None and (attempt.end is None or attempt.action == "complete"):
            kept.append((limit, until - attempt.start))
        else:
            own = [(min(t, until), step) for t, step in saves if attempt.start <= t <= next_t]
            kept += _stretches(attempt, limit, own)
    productive = sum(seconds for _, seconds in kept)
    return productive, worked_s - productive


def _stretches(
    attempt: AttemptSummary, reached: int, saves: Sequence[tuple[float, int]]
) -> list[tuple[int, float]]:
    """Give an attempt's stretches of work, each up to a checkpoint: step reached, seconds."""
    stretches = []
    at = attempt.start
    for written_t, step in saves:
        if step > reached:
            stretches.append((step, written_t - at))
            reached, at = step, written_t
    return stretches


def _final_step(lines: Sequence[Line], attempts: Sequence[AttemptSummary]) -> int | None:
    reported = attempts[-1].last_step if attempts else None
    verified = [line["step"] for line in lines if line["type"] == "checkpoint"]
    return reported if reported is not None else max(verified, default=None)
