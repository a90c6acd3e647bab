"""Records a comeback in the journal, and reports it to people."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from prefect_ft.amounts import count
from prefect_ft.clock import PhaseClock
from prefect_ft.formats import written_by
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import ComebackLine
from prefect_ft.observe import Notice, tell
from prefect_ft.supervisor.comeback import Standing
from prefect_ft.supervisor.events import AgentStanding


@dataclass(frozen=True, slots=True)
class Comeback:
    """The return of an orchestrator of a new epoch to a phase, after `silent_s` without a line in its journal.

    `unwatched_s` is for how long there was none; None: unknown.
    """

    epoch: int
    by_hand: bool
    silent_s: float
    unwatched_s: float | None

    def record(
        self,
        phase: str,
        found: Standing,
        agents: Mapping[int, AgentStanding],
        reached: Collection[int],
        *,
        journal: MemoryJournal,
        clock: PhaseClock,
    ) -> None:
        """Write it into the journal, with an attempt that is missing there, and report it.

        `agents` are the agents' own reports; those of `reached` are alive.
        """
        line = ComebackLine(
            epoch=self.epoch,
            by_hand=self.by_hand,
            silent_s=round(self.silent_s, 3),
            attempt=found.attempt or None,
            goes_on=found.watched is not None,
            adopted=tuple(reached),
            left=tuple(worker for worker in sorted(agents) if worker not in reached),
            unwatched_s=None if self.unwatched_s is None else round(self.unwatched_s, 3),
            **written_by("journal"),
        )
        journal.append(line, t=clock.now())
        if found.note is not None:
            journal.append(found.note, t=clock.now())
        stands = "goes on" if any(agent.running for agent in agents.values()) else "had ended"
        what = f"attempt {found.attempt} {stands}" if found.watched is not None else "nothing was running"
        workers = count(len(reached), "worker")
        tell(Notice(text=f"{phase}: back after {self._gone}: {what}, {workers} found"))

    @property
    def _gone(self) -> str:
        """How long nobody watched, or what is known of that."""
        if self.unwatched_s is not None:
            return f"{self.unwatched_s:.1f} s"
        return f"{self.silent_s:.1f} s without a line in the journal"
