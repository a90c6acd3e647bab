"""The story of a run: the content of its phases' journals in one order and on one clock, ready for display.

Times are seconds since the run's first phase began. Nothing is read here and nothing is formatted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import zip_longest
from math import inf
from typing import NamedTuple

from prefect_ft.decide.incidents import places
from prefect_ft.journal.attempts import PARTS, AttemptSummary, Gang, Judged, Span, Timeline, timeline_of
from prefect_ft.journal.lines import head_of
from prefect_ft.journal.records import (
    FIRST_STEP,
    AttemptLine,
    CameUpLine,
    CheckpointLine,
    ComebackLine,
    Line,
    OddValueLine,
)
from prefect_ft.journal.summary import HangSummary, PhaseSummary, reached_t, summarise
from prefect_ft.model import RESTARTS
from prefect_ft.report.advice import Advice, advise

LONG_SILENCE_S = 3600.0
"""After a silence this long the state of a run is unknown: the silent time is not counted."""

WORK = ("productive", "recompute")
"""The parts of time in which ranks run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseJournal:
    """The files of a phase: its journal's lines, its current time if it still runs, and texts.

    `now_t` is in seconds since the phase began. `texts` are the files that the journal names, `damage` describes
    the lines that cannot be read.
    """

    lines: Sequence[Line]
    now_t: float | None = None
    damage: str | None = None
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def silent_s(self) -> float:
        """Seconds since the last line of a phase without an end."""
        return max(self.now_t - float(self.lines[-1].t), 0.0) if self.now_t is not None else 0.0

    @property
    def known_t(self) -> float | None:
        """The time until which the phase counts as running; `None`: until its last line."""
        return self.now_t if self.silent_s < LONG_SILENCE_S else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The spans in which a system had a worker, or was about to get one; `out` are the times when it was out of use."""

    system: str
    spans: tuple[Span, ...]
    out: tuple[tuple[float, float], ...]


class Start(NamedTuple):
    """Where an attempt actually started; `step` `None`: from scratch. `why`: why that differs from the decision."""

    step: int | None
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An incident and the decision about it.

    `number` counts disturbances from 1; `None`: the phase completed. `joined` are the systems that got a worker by
    the decision. `down_s` is the time from the incident to the first step of the next attempt (`has_resumed`), or to
    its start if no step is known, `None` if none followed;
    `skipped` are the checkpoints that this attempt could not resume from, each with the reason, and `start` is where
    it started.
    """

    number: int | None
    t: float
    phase: str
    judged: Judged
    where: tuple[str, ...]
    joined: tuple[str, ...]
    down_s: float | None
    has_resumed: bool
    steps_lost: int | None
    skipped: Mapping[str, str]
    start: Start | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """The steps of one attempt over time; steps above `kept_to` were lost, `None`: none are known to be lost.

    `counted`: the steps of its checkpoints are the numbers of versions.
    """

    points: tuple[tuple[float, int], ...]
    saves: tuple[tuple[float, int], ...]
    kept_to: int | None
    counted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A suspension: its time, its verdict, and the stacks of the ranks if known."""

    t: float
    phase: str
    summary: HangSummary
    text: str | None


class Comeback(NamedTuple):
    """The return of an orchestrator after one had gone: its time, and its line of the journal.

    `had_ended`: the attempt had ended by then, as its agents knew.
    """

    t: float
    phase: str
    line: ComebackLine
    had_ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStory:
    """One phase, from `start` to `end`."""

    name: str
    start: float
    end: float
    summary: PhaseSummary
    spans: tuple[Span, ...]
    climbs: tuple[Climb, ...]
    odd_values: tuple[OddValueLine, ...]
    target_step: int | None
    limits: Mapping[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A run so far. `began` is in UTC, `None` if no phase has begun.

    `silent_s` is the time since the last line of its journal, if it has not ended.
    """

    job: str
    run: str
    began: datetime | None
    total_s: float
    phases: tuple[PhaseStory, ...]
    lanes: tuple[Lane, ...]
    events: tuple[Event, ...]
    hangs: tuple[Hang, ...]
    comebacks: tuple[Comeback, ...]
    advice: Advice
    silent_s: float

    @property
    def status(self) -> str:
        return self.phases[-1].summary.status if self.phases else "running"

    @property
    def reason(self) -> str:
        return self.phases[-1].summary.reason if self.phases else ""

    @property
    def disturbances(self) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.number is not None)

    @property
    def restarts(self) -> int:
        return sum(sum(phase.summary.restarts.values()) for phase in self.phases)

    @property
    def time_s(self) -> dict[str, float]:
        """Seconds by part, over all phases."""
        return {part: sum(phase.summary.time_s[part] for phase in self.phases) for part in PARTS}

    @property
    def effective_ratio(self) -> float | None:
        """The productive share of the phases' time."""
        total_s = sum(phase.summary.time_s["total"] for phase in self.phases)
        return self.time_s["productive"] / total_s if total_s else None

    @property
    def steps_lost(self) -> int:
        return sum(attempt.steps_lost or 0 for phase in self.phases for attempt in phase.summary.attempts)

    @property
    def isolated(self) -> tuple[str, ...]:
        names = (name for phase in self.phases for name in phase.summary.isolated_systems)
        return tuple(dict.fromkeys(names))


def story_of(phases: Sequence[PhaseJournal]) -> Story:
    """Return the story of a run from its phases' journals, in order. Raises JournalError."""
    begun = [phase for phase in phases if phase.lines]
    starts = [_utc(phase.lines[0]) for phase in begun]
    parts = [
        _part(phase, (start - starts[0]).total_seconds()) for phase, start in zip(begun, starts, strict=True)
    ]
    head = head_of(begun[0].lines) if begun else None
    return Story(
        job=head.job if head is not None else "",
        run=head.run if head is not None else "",
        began=starts[0] if starts else None,
        total_s=max((part.story.end for part in parts), default=0.0),
        phases=tuple(part.story for part in parts),
        lanes=_lanes(parts),
        events=_numbered(parts),
        hangs=tuple(hang for part in parts for hang in _hangs(part)),
        comebacks=tuple(each for part in parts for each in _comebacks(part)),
        advice=advise((part.journal.lines, part.timeline) for part in parts),
        silent_s=begun[-1].silent_s if begun else 0.0,
    )


def _utc(line: Line) -> datetime:
    return datetime.fromisoformat(line.utc.replace("Z", "+00:00"))


@dataclass(frozen=True, slots=True)
class _Part:
    journal: PhaseJournal
    timeline: Timeline
    story: PhaseStory


def _part(journal: PhaseJournal, offset: float) -> _Part:
    lines = journal.lines
    head = head_of(lines)
    end_t = reached_t(lines, journal.known_t)
    timeline = timeline_of(lines, end_t)
    story = PhaseStory(
        name=head.phase if head is not None else "",
        start=offset,
        end=offset + end_t,
        summary=summarise(lines, journal.known_t),
        spans=tuple(_moved(span, offset) for span in timeline.spans),
        climbs=tuple(_climbs(lines, timeline, offset, end_t)),
        odd_values=tuple(line for line in lines if isinstance(line, OddValueLine)),
        target_step=head.target_step if head is not None else None,
        limits=(head.limits or {}) if head is not None else {},
    )
    return _Part(journal, timeline, story)


def _moved(span: Span, offset: float) -> Span:
    return Span(part=span.part, start=offset + span.start, end=offset + span.end, attempt=span.attempt)


# -- lanes ------------------------------------------------------------------------------------------


def _lanes(parts: Sequence[_Part]) -> tuple[Lane, ...]:
    names: dict[str, None] = {}
    for part in parts:
        head = head_of(part.journal.lines)
        names |= dict.fromkeys((head.systems or ()) if head is not None else ())
        names |= dict.fromkeys(name for gang in part.timeline.gangs for name in gang.placement)
    return tuple(Lane(system=name, spans=_spans_on(parts, name), out=_out(parts, name)) for name in names)


def _spans_on(parts: Sequence[_Part], system: str) -> tuple[Span, ...]:
    return tuple(span for part in parts for span in part.story.spans if system in _involved(part, span))


def _involved(part: _Part, span: Span) -> frozenset[str]:
    """Return the systems that a span belongs to; a pause also belongs to the systems of the next attempt."""
    gangs = part.timeline.gangs
    now = _placement(gangs, span.attempt)
    return frozenset(now if span.part in WORK else (*now, *_placement(gangs, span.attempt + 1)))


def _placement(gangs: Sequence[Gang], attempt: int) -> tuple[str, ...]:
    return next((gang.placement for gang in gangs if gang.attempt == attempt), ())


def _out(parts: Sequence[_Part], system: str) -> tuple[tuple[float, float], ...]:
    """Return the times when a system was out of use: from isolation until it has a worker again, or the run ends."""
    times = []
    for part in parts:
        head = head_of(part.journal.lines)
        if head is not None and system in (head.isolated or ()):
            times.append((part.story.start, _used_again(part, system, 0.0)))
        times += [
            (part.story.start + each.decided_t, _used_again(part, system, each.decided_t))
            for each in part.timeline.judged
            if system in each.decision.isolate
        ]
    return tuple(times)


def _used_again(part: _Part, system: str, t: float) -> float:
    later = (
        attempt.start
        for attempt, gang in zip(part.timeline.attempts, part.timeline.gangs, strict=True)
        if attempt.start >= t and system in gang.placement
    )
    return part.story.start + next(later, part.story.end - part.story.start)


# -- decisions --------------------------------------------------------------------------------------


def _numbered(parts: Sequence[_Part]) -> tuple[Event, ...]:
    events = []
    number = 0
    for part in parts:
        for judged in part.timeline.judged:
            is_disturbance = not judged.decision.completes
            number += is_disturbance
            events.append(_event(part, judged, number if is_disturbance else None))
    return tuple(events)


def _event(part: _Part, judged: Judged, number: int | None) -> Event:
    attempts = part.timeline.attempts
    ended = next((each for each in attempts if each.number == judged.attempt), None)
    follower = next((each for each in attempts if each.start >= judged.decided_t), None)
    resumed_t = _first_step_t(part, follower)
    until_t = follower.start if resumed_t is None and follower is not None else resumed_t
    down_s = until_t - judged.ended_t if until_t is not None else None
    before = _placement(part.timeline.gangs, judged.attempt)
    line = _line_of(part, follower) if down_s is not None and judged.decision.action in RESTARTS else None
    return Event(
        number=number,
        t=part.story.start + judged.ended_t,
        phase=part.story.name,
        judged=judged,
        where=places(judged.incident, before),
        joined=tuple(name for name in judged.decision.placement if before and name not in before),
        down_s=down_s if judged.decision.action in RESTARTS else None,
        has_resumed=resumed_t is not None,
        steps_lost=ended.steps_lost if judged.ended_attempt and ended is not None else None,
        skipped=(line.passed_over or {}) if line is not None else {},
        start=_start(follower, line) if line is not None and follower is not None else None,
    )


def _start(attempt: AttemptSummary, line: AttemptLine) -> Start:
    """Return where an attempt started, which may have ignored what it was given."""
    if attempt.unloaded_step is None:
        return Start(line.resume_step, line.why)
    return Start(None, f"the command was given step {attempt.unloaded_step:,} and began anew")


def _first_step_t(part: _Part, attempt: AttemptSummary | None) -> float | None:
    """Return when the first rank of an attempt reported a step."""
    lines = (line for line in part.journal.lines if isinstance(line, CameUpLine) and line.what == FIRST_STEP)
    return next((line.at_t for line in lines if attempt is not None and line.attempt == attempt.number), None)


def _line_of(part: _Part, attempt: AttemptSummary | None) -> AttemptLine | None:
    """Return an attempt's own line of the journal."""
    lines = (line for line in part.journal.lines if isinstance(line, AttemptLine))
    return next((line for line in lines if attempt is not None and line.attempt == attempt.number), None)


# -- steps ------------------------------------------------------------------------------------------


def _climbs(lines: Sequence[Line], timeline: Timeline, offset: float, end_t: float) -> list[Climb]:
    saves = sorted({(line.written_t, line.step) for line in lines if isinstance(line, CheckpointLine)})
    counted = {line.step for line in lines if isinstance(line, CheckpointLine) and line.counted}
    climbs = []
    for attempt, follower in zip_longest(timeline.attempts, timeline.attempts[1:]):
        until = attempt.end if attempt.end is not None else follower.start if follower is not None else end_t
        step = attempt.resume_step or 0
        own = [
            (t, step)
            for t, step in saves
            if attempt.start <= t <= until and step > (attempt.resume_step or 0)
        ]
        points = [(attempt.start, step), *own]
        if attempt.last_step is not None:
            points.append((until, max(attempt.last_step, points[-1][1])))
        lost = attempt.steps_lost
        climbs.append(
            Climb(
                points=tuple((offset + t, step) for t, step in points),
                saves=tuple((offset + t, step) for t, step in own),
                kept_to=points[-1][1] - lost if lost else None,
                counted=bool(own) and all(step in counted for _, step in own),
            )
        )
    return climbs


# -- suspensions ------------------------------------------------------------------------------------


def _hangs(part: _Part) -> list[Hang]:
    return [
        Hang(
            t=part.story.start + summary.t,
            phase=part.story.name,
            summary=summary,
            text=part.journal.texts.get(summary.diagnosis or ""),
        )
        for summary in part.story.summary.hangs
    ]


# -- orchestrators ----------------------------------------------------------------------------------


def _comebacks(part: _Part) -> list[Comeback]:
    ends = {each.attempt: each.ended_t for each in part.timeline.judged if each.ended_attempt}
    return [
        Comeback(part.story.start + line.t, part.story.name, line, ends.get(line.attempt or 0, inf) <= line.t)
        for line in part.journal.lines
        if isinstance(line, ComebackLine)
    ]
