"""Watches the running attempt for suspensions: samples and lines of output in, verdicts out and into the journal.

Owns the state of hangs and of stages' pauses. What follows a verdict is up to the supervisor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from prefect_ft.clock import PhaseClock
from prefect_ft.decide.hang import ContainerSample, GangWatch, Hang, Limits, Pace, RankSample, Sample
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import HangLine, HangOverLine, Line, PaceLine, Sign, StragglerLine
from prefect_ft.model import Evidence, Incident
from prefect_ft.observe import Notice, tell
from prefect_ft.signatures import compiled
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.events import Event, Lost, Output, Sampled

CLOSER = 4
"""While a verdict may be near, samples are taken this many times as often."""

SAMPLES_OF_A_LIMIT = 40
"""While a verdict may be near, there are at least this many samples within the shortest limit."""

MAX_SIGNS = 16
"""Pieces of evidence that the journal keeps of a verdict."""

Response = Literal["restart", "report", "shadow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspensionPlan:
    """What counts as a suspension, and what follows. `pauses` are from earlier runs of the phase, oldest first."""

    limits: Limits
    response: Response
    grace_s: float
    sample_period_s: float
    pauses: tuple[Mapping[str, Sequence[float]], ...] = ()


@dataclass(frozen=True, slots=True)
class _Open:
    """A verdict without a known outcome: whether the ranks moved again after it."""

    number: int
    ranks: tuple[int, ...]
    since_t: float


class Hangs:
    """`found` is a verdict to be acted on; `record` clears it."""

    def __init__(
        self,
        plan: SuspensionPlan,
        journal: MemoryJournal,
        clock: PhaseClock,
        sample_every: Callable[[float], None],
    ) -> None:
        """`sample_every` sets the period of samples, in seconds."""
        self.found: Hang | None = None
        self._plan, self._journal, self._clock = plan, journal, clock
        self._sample_every = sample_every
        self._patterns = [
            (compiled(line.pattern), compiled(line.start or line.pattern), line.stop and compiled(line.stop))
            for line in plan.limits.logs
        ]
        self._attempt: Attempt | None = None
        self._watch: GangWatch | None = None
        self._pace = Pace(plan.pauses)
        self._open: _Open | None = None
        self._is_close = False
        self._stragglers: set[int] = set()
        """The ranks that were reported as slow and have not caught up since."""
        self._slow: set[int] = set()
        """The ranks that seemed slow at the last check: workers are sampled one after the other."""
        self._looked_s = 0.0

    def begin(self, attempt: Attempt) -> None:
        """Watch an attempt; one that an earlier orchestrator watched continues with its verdicts."""
        self._attempt = attempt
        ranks = {rank: state.worker for rank, state in attempt.ranks.items()}
        self._pace = Pace((*self._plan.pauses, *pauses_in(self._journal.lines)))
        self._watch = GangWatch(ranks, self._plan.limits, self._pace)
        self._open = _open_in(self._journal.lines, attempt.number)
        self.found, self._is_close, self._looked_s = None, False, 0.0
        self._stragglers.clear()
        self._slow.clear()

    def end(self) -> None:
        """End the watch: the attempt is over. Idempotent."""
        if self._attempt is None:
            return
        if self._open is not None:
            self._close(went_on=False)
        if pauses := self._pace.pauses:
            recorded = {stage: tuple(some) for stage, some in pauses.items()}
            self._write(PaceLine(attempt=self._attempt.number, pauses=recorded))
        self._attempt = self._watch = self.found = None

    # -- in ---------------------------------------------------------------------------------------

    def hear(self, worker: int, event: Event | Lost) -> None:
        """Take an event of an agent."""
        if self._watch is None or isinstance(event, Lost) or event.token[2] != self._number:
            return
        if isinstance(event, Sampled):
            self._sampled(self._watch, worker, sample_of(event))
        elif isinstance(event, Output) and self._patterns:
            self._printed(self._watch, event.rank, event.text)

    def _sampled(self, watch: GangWatch, worker: int, sample: Sample) -> None:
        is_suspect = watch.take(worker, sample)
        if sample.is_past:
            return
        if self._open is not None and watch.has_moved(self._open.ranks):
            self._close(went_on=True)
        if is_suspect and not self._is_close:
            self._is_close = True
            self._sample_every(
                min(self._plan.sample_period_s / CLOSER, self._plan.limits.shortest_s / SAMPLES_OF_A_LIMIT)
            )
        verdict = watch.verdict() if is_suspect else None
        if verdict is not None and self._open is None:
            self.found = verdict
        if self._is_close and not is_suspect and not watch.is_suspicious:
            self._is_close = False
            self._sample_every(self._plan.sample_period_s)
        self._look_for_stragglers(watch, sample.watched_s)

    def _printed(self, watch: GangWatch, rank: int, text: str) -> None:
        for number, (pattern, start, stop) in enumerate(self._patterns):
            for line in text.splitlines():
                if stop and stop.search(line):
                    watch.lines_stop(number)
                elif start.search(line) or (watch.awaits(number) and pattern.search(line)):
                    watch.line_seen(number, rank)

    def _look_for_stragglers(self, watch: GangWatch, now_s: float) -> None:
        if now_s - self._looked_s < self._plan.limits.hang_s / 10:
            return
        self._looked_s = now_s
        found = {each.rank: each for each in watch.stragglers()}
        for rank, each in found.items():
            if rank in self._slow and rank not in self._stragglers:
                self._stragglers.add(rank)
                line = StragglerLine(
                    attempt=self._number,
                    rank=rank,
                    worker=each.worker,
                    step=each.step,
                    others_step=each.others_step,
                    pace=round(each.pace, 3),
                    lasted_s=round(each.lasted_s, 1),
                )
                self._write(line)
                text = f"rank {rank} makes {each.pace:.0%} of the others' steps for {each.lasted_s:.0f} s"
                tell(Notice(text=f"{text}: it is at {each.step}, they are at {each.others_step}"))
        self._stragglers &= set(found)
        self._slow = set(found)

    # -- out --------------------------------------------------------------------------------------

    @property
    def next_number(self) -> int:
        """The number of the phase's next verdict, from 1."""
        return 1 + sum(isinstance(line, HangLine) for line in self._journal.lines)

    def record(self, hang: Hang, where: str | None, diagnosis: str | None) -> None:
        """Write a verdict into the journal. `where` says where the ranks are, `diagnosis` names the file."""
        number = self.next_number
        signs = [
            Sign(kind=sign.kind, rank=sign.rank, text=sign.text, lasted_s=round(sign.lasted_s, 1))
            for sign in hang.signs[:MAX_SIGNS]
        ]
        line = HangLine(
            n=number,
            attempt=self._number,
            response=self._plan.response,
            scope=hang.scope,
            ranks=tuple(hang.ranks),
            blamed=hang.blamed,
            worker=hang.worker,
            limit_s=hang.limit_s,
            evidence=tuple(signs),
            where=where,
            diagnosis=diagnosis,
        )
        self._write(line)
        self.found = None
        if self._plan.response != "restart":
            self._open = _Open(number, hang.ranks, self._clock.now())

    @property
    def _number(self) -> int:
        return self._attempt.number if self._attempt is not None else 0

    def _close(self, *, went_on: bool) -> None:
        assert self._open is not None
        after_s = round(self._clock.now() - self._open.since_t, 3)
        over = HangOverLine(n=self._open.number, attempt=self._number, went_on=went_on, after_s=after_s)
        self._write(over)
        if went_on:
            tell(Notice(text=f"the ranks that counted as suspended resumed after {after_s:.0f} s"))
        self._open = None

    def _write(self, line: Line) -> None:
        self._journal.append(line, t=self._clock.now())


def incident_of(hang: Hang, attempt: Attempt, t: float, where: str | None) -> Incident:
    """Return the incident for a verdict."""
    rank = hang.ranks[0] if hang.blamed is None else hang.blamed
    state = attempt.ranks[rank]
    text = hang.text + (f"; {where}" if where else "")
    return Incident(
        t=t,
        kind="suspended",
        attempt=attempt.number,
        worker=hang.worker,
        stage=state.stage,
        stage_step=state.stage_step,
        evidence=Evidence(rule=hang.scope, text=text, file=f"rank{rank}"),
    )


def with_blame(hang: Hang, blamed: int | None, attempt: Attempt) -> Hang:
    """Return a verdict with the rank to blame by the ranks' stacks, if they show one."""
    if blamed is None:
        return hang
    return replace(hang, blamed=blamed, worker=attempt.ranks[blamed].worker)


def sample_of(event: Sampled) -> Sample:
    """Return an agent's sample as decisions take it."""
    ranks = {
        rank: RankSample(
            beats=each.beats,
            beat_s=each.beat_s,
            step=each.step,
            stage=each.stage,
            io=each.io,
            output=each.output,
            cpu_s=each.cpu_s or 0.0,
            wait_s=each.wait_s,
            state=each.state or "X",
            is_over=each.over,
        )
        for rank, each in event.ranks.items()
    }
    counts = event.container
    container = (
        None
        if counts is None
        else ContainerSample(throttled_s=counts.throttled_s, oom_kills=counts.oom_kills)
    )
    return Sample(
        watched_s=event.watched_s, ranks=ranks, devices=event.devices, container=container, is_past=event.past
    )


def pauses_in(lines: Sequence[Line]) -> Sequence[Mapping[str, Sequence[float]]]:
    """Return the pauses in stages that a journal records: those of its last line, which includes earlier ones."""
    records = [line.pauses for line in lines if isinstance(line, PaceLine)]
    return records[-1:]


def _open_in(lines: Sequence[Line], attempt: int) -> _Open | None:
    """Return an attempt's last verdict that was only reported and has no outcome yet."""
    verdicts = [line for line in lines if isinstance(line, HangLine) and line.attempt == attempt]
    over = {line.n for line in lines if isinstance(line, HangOverLine)}
    still = [line for line in verdicts if line.n not in over and line.response != "restart"]
    return _Open(still[-1].n, still[-1].ranks, still[-1].t) if still else None
