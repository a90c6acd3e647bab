"""What is known of the attempt that runs: a fold over the agents' events. Decides nothing.

What its end comes to is for `incidents`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prefect_ft.decide.classify import Catalogue, LogScanner
from prefect_ft.decide.step_lines import StepLines
from prefect_ft.model import Incident
from prefect_ft.supervisor.events import Beat, Call, Event, Excerpt, Exited, Lost, Output, StartFailed
from prefect_ft.supervisor.rank_state import RankState


class Start(NamedTuple):
    """What an attempt resumes from; `None`: from scratch, or unknown."""

    step: int | None = None
    path: str | None = None


START = Start()
"""From scratch, or unknown."""


class Attempt:
    """One attempt, from its start until all its ranks are gone."""

    def __init__(
        self,
        number: int,
        ranks: Mapping[int, int],
        catalogue: Catalogue | None = None,
        *,
        start: Start = START,
        progress_pattern: str | None = None,
        has_run_before: bool = False,
    ) -> None:
        """`ranks` maps each rank to its worker; `catalogue` is the package's own if not given.

        `start` is what it resumes from. `progress_pattern` tells steps in output. `has_run_before`: ranks of
        the phase have been started before, so that its systems can do that.
        """
        self.has_run_before = has_run_before
        self.number = number
        self.resume_path = start.path
        self.ranks = {
            rank: RankState(
                worker,
                output=LogScanner(f"rank{rank}", catalogue),
                printed=StepLines(progress_pattern, start=start.step),
            )
            for rank, worker in ranks.items()
        }
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.lost: dict[int, Lost] = {}
        """Workers whose agent went away."""
        self.start_error: StartFailed | None = None
        self.report: Incident | None = None
        """What was reported of a device or system, if that ends it: a fault, a loss, a preemption."""
        self.healing_s: float | None = None
        """How long it took to try to mend a device after it; None: that was not tried."""
        self.suspension: Incident | None = None
        """The verdict that its ranks hang, if that ends it."""
        self.odd: Incident | None = None
        """What is out of the usual in the values that ranks report, if that ends it."""
        self.odd_workers: set[int] = set()
        """The workers whose ranks reported such values."""
        self.hung_since_t: float | None = None
        """Since when they do, as far as that is known."""
        self.ending = False
        """Set once the ranks are being ended; who ends from then on has not failed."""
        self._left = set(ranks)
        """The ranks that have not ended."""
        self._ends: list[int] = []
        """The ranks that have failed, in the order of the reports."""
        self._inside: frozenset[int] = frozenset()
        """The ranks of a wrapped call, which goes on without those of them that are lost."""
        self.excused: frozenset[int] = frozenset()
        """Lost ranks that such a call continues without."""

    def has(self, worker: int, rank: int) -> bool:
        """Return whether a rank is one of a worker's."""
        return rank in self.ranks and self.ranks[rank].worker == worker

    def take(self, worker: int, event: Event | Lost) -> None:
        """Learn from one event of a worker's agent."""
        match event:
            case Exited():
                self._exited(event)
            case Output():
                self.ranks[event.rank].hear(event.offset, event.text)
            case Excerpt():
                self._excerpt(event)
            case Beat():
                self._beat(event)
            case StartFailed():
                self.start_error = event
            case Call() if worker == 0:  # whose agent is where the ranks of all workers meet
                self._inside, self.excused = frozenset(event.inside), frozenset(event.excused)
            case Lost():
                self.lost[worker] = event
            case _:
                pass

    @property
    def over(self) -> bool:
        """Whether the attempt has ended: something failed, or every rank is done."""
        return self._is_done or self._ended_otherwise

    @property
    def _is_done(self) -> bool:
        return not self._left

    @property
    def failures(self) -> Iterator[int]:
        """The ranks whose failure ends the attempt, in the order of the reports, without those that are not needed."""
        spared = self.excused if self._is_done else self.excused | self._inside
        return (rank for rank in self._ends if rank not in spared)

    @property
    def first_failure(self) -> int | None:
        """The first of these ranks; `None`: there is none."""
        return next(self.failures, None)

    @property
    def _ended_otherwise(self) -> bool:
        reports = self.report or self.suspension or self.odd
        return self.first_failure is not None or bool(self.lost or self.start_error or reports)

    @property
    def is_complete(self) -> bool:
        """Whether every rank has come to its own good end, but those that the others did without."""
        return self._is_done and not any(
            state.was_stopped or (state.failed and rank not in self.excused)
            for rank, state in self.ranks.items()
        )

    @property
    def is_running(self) -> bool:
        """Whether ranks run, and none of them has failed or got lost."""
        return not (self._is_done or self.lost or self.start_error or self.first_failure is not None)

    @property
    def has_failed_in_part(self) -> bool:
        """Whether it has ended by failures of ranks alone, while others run that it cannot do without."""
        if self.lost or self.start_error or self.report or self.suspension or self.odd:
            return False
        return self.first_failure is not None and any(rank not in self.excused for rank in self._left)

    def found_odd(self, found: Incident) -> None:
        """Take note of values out of the usual: the first ends it, others say which workers have them too."""
        if self.ending or self.is_complete:
            return
        self.odd = self.odd or found
        if found.worker is not None:
            self.odd_workers.add(found.worker)

    def _exited(self, event: Exited) -> None:
        state = self.ranks[event.rank]
        if state.ended_ns is not None:
            return  # told again to a new connection
        state.exit_code, state.signal, state.ended_ns = event.code, event.signal, event.t_ns
        state.ran_out = event.oom
        state.was_stopped = self.ending
        self._left.discard(event.rank)
        if state.failed:
            self._ends.append(event.rank)

    def _excerpt(self, event: Excerpt) -> None:
        """Hear what was chosen of output that was not handed on, so far as it is news."""
        state = self.ranks[event.rank]
        if event.bytes <= state.heard:
            return
        for part in event.parts:
            if part.offset > state.heard:
                state.output.pass_over(part.line)
            state.hear(part.offset, part.text)
        if event.bytes > state.heard:
            state.output.pass_over(event.lines + 1)
            state.heard = event.bytes

    def _beat(self, event: Beat) -> None:
        state = self.ranks[event.rank]
        state.step, state.stage, state.stage_step = event.step, event.stage, event.stage_step
        state.every = event.every
        state.sample = event.sample
        if event.step is not None:
            self.first_step = event.step if self.first_step is None else self.first_step
            self.last_step = max(event.step, self.last_step or 0)

    def has_run_out(self, worker: int) -> bool:
        """Return whether a rank of a worker was killed because its container's memory was used up."""
        return any(state.ran_out and state.failed for state in self.ranks.values() if state.worker == worker)

    def ended_ns(self) -> int | None:
        """Return when it ended by itself (first failure, else its last rank's end), by CLOCK_BOOTTIME."""
        if (first := self.first_failure) is not None:
            return self.ranks[first].ended_ns
        ends = [state.ended_ns for state in self.ranks.values() if not state.was_stopped]
        known = [end for end in ends if end is not None]
        return max(known) if len(known) == len(self.ranks) else None
