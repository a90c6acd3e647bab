"""Watches the losses and gradient norms that ranks report: values in, findings into the journal and to the attempt.

Owns what has been found, and how often that has ended an attempt. `decide.spikes` says what is out of the usual.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prefect_ft.clock import PhaseClock
from prefect_ft.decide.spikes import Limits, Odd, Quantity, Response, Series
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import IncidentLine, Line, OddValueLine
from prefect_ft.model import Evidence, Incident
from prefect_ft.observe import Notice, tell
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.event_parts import Value
from prefect_ft.supervisor.events import Beat, Event, Lost
from prefect_ft.supervisor.incidents import OUT_OF_THE_USUAL
from prefect_ft.supervisor.rank_state import MOST_APART

MAX_LINES = 1000
"""Findings that a journal takes: a training that never calms down must not fill it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPlan:
    """What is out of the usual and what follows; `max_acts` attempts of a phase are ended because of it."""

    response: Response
    limits: Limits
    max_acts: int


OFF = WatchPlan(response="off", limits=Limits(window=1, least=1, deviations=math.inf), max_acts=0)
"""No watch."""


class Values:
    """The watch over one phase. Its findings concern the latest attempt."""

    def __init__(self, phase: str, plan: WatchPlan, journal: MemoryJournal, clock: PhaseClock) -> None:
        self._phase, self._plan = phase, plan
        self._journal, self._clock = journal, clock
        self._number: int | None = None
        self._heard: dict[int, int] = {}
        """By rank, the number of its last value."""
        self._series: dict[tuple[int, Quantity], Series] = {}

    def hear(self, attempt: Attempt, worker: int, event: Event | Lost) -> None:
        """Take an event of an agent."""
        if self._plan.response == "off" or not isinstance(event, Beat) or event.token[2] != attempt.number:
            return
        if self._number != attempt.number:
            self._number, self._heard, self._series = attempt.number, {}, {}
        for value in event.values:
            if value.number > self._heard.get(event.rank, 0):
                self._heard[event.rank] = value.number
                for odd in self._odd(event.rank, value):
                    self._found(attempt, worker, event, odd)

    def _odd(self, rank: int, value: Value) -> Iterator[Odd]:
        reported: tuple[tuple[Quantity, float | None], ...] = (
            ("loss", value.loss),
            ("grad_norm", value.grad_norm),
        )
        for quantity, number in reported:
            if number is None or value.step is None:
                continue
            if (rank, quantity) not in self._series:
                self._series[rank, quantity] = Series(quantity, self._plan.limits)
            if (odd := self._series[rank, quantity].take(value.step, number)) is not None:
                yield odd

    def _found(self, attempt: Attempt, worker: int, event: Beat, odd: Odd) -> None:
        acts = self._plan.response == "act" and acts_in(self._journal.lines) < self._plan.max_acts
        if acts and (attempt.odd is None or attempt.odd.reached in (None, odd.step)):
            attempt.found_odd(_incident(worker, event, odd))
        line = OddValueLine(
            attempt=attempt.number,
            rank=event.rank,
            worker=worker,
            step=odd.step,
            quantity=odd.quantity,
            oddness=odd.oddness,
            value=odd.value if math.isfinite(odd.value) else None,
            usual=odd.usual,
            deviations=odd.deviations,
            text=odd.text,
            acted=acts,
        )
        if self._is_new(line):
            self._journal.append(line, t=self._clock.now())
            tell(Notice(text=f"{self._phase}: rank {event.rank}: {odd.text}"))

    def _is_new(self, line: OddValueLine) -> bool:
        """Whether it has not been recorded yet: agents repeat their reports to an orchestrator that comes back."""
        found = [each for each in self._journal.lines if isinstance(each, OddValueLine)]
        key = line.attempt, line.rank, line.step, line.quantity
        is_known = any((each.attempt, each.rank, each.step, each.quantity) == key for each in found)
        return len(found) < MAX_LINES and not is_known


def acts_in(lines: Iterable[Line]) -> int:
    """Count the attempts that ended because of their values."""
    return sum(
        isinstance(line, IncidentLine)
        and line.incident.evidence is not None
        and line.incident.evidence.rule == OUT_OF_THE_USUAL
        for line in lines
    )


def _incident(worker: int, event: Beat, odd: Odd) -> Incident:
    """Return what a script's own failure at that step would be."""
    is_close = event.every is not None and event.every <= MOST_APART
    return Incident(
        t=0,
        kind="exit",
        worker=worker,
        failure_class="numeric",
        blame="none",
        signature=OUT_OF_THE_USUAL,
        reached=odd.step if is_close else None,
        reached_every=event.every if is_close else None,
        sample=event.sample,
        stage=event.stage,
        evidence=Evidence(rule=OUT_OF_THE_USUAL, text=odd.text, file=f"rank{event.rank}"),
    )
