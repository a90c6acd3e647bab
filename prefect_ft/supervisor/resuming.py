"""What an attempt starts from: the checkpoint that was decided, or the newest that is whole; and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from prefect_ft.clock import PhaseClock
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import EarlierSavesLine, IncidentLine
from prefect_ft.model import Decision
from prefect_ft.observe import Notice, tell
from prefect_ft.supervisor.events import Chosen
from prefect_ft.supervisor.launch import PhasePlan, SavesPlan
from prefect_ft.supervisor.runlog import RunLog
from prefect_ft.supervisor.saves import Saves

MAX_PASSED_OVER = 5
"""Checkpoints that could not be verified and are named at the start of an attempt."""

NO_STEP = -1
"""The limit by which an agent chooses no checkpoint, and learns what is known of them all the same."""

LOOK_LASTS_S = 0.5
"""How long a look at the checkpoints is as good as another one; a person may be asked about a restart for hours."""


class Choice(NamedTuple):
    """The checkpoint to resume from, None: from scratch; and what is wrong with others, by name.

    `paths` are those of each worker's part of it, where every worker has one.
    """

    step: int | None = None
    path: str | None = None
    why_not: Mapping[str, str] = {}
    paths: Mapping[int, str] = {}

    @classmethod
    def of(cls, chosen: Chosen) -> Choice:
        """Return what an agent has chosen."""
        return cls(chosen.step, chosen.path, chosen.why_not)


class Resuming:
    """Chooses for one phase. `deaths` are when writers died while nobody watched; seconds since the epoch."""

    def __init__(
        self, plan: PhasePlan, saves: Saves, journal: MemoryJournal, clock: PhaseClock, log: RunLog
    ) -> None:
        self._plan, self._saves = plan, saves
        self._journal, self._clock, self._log = journal, clock, log
        self.deaths: list[float] = []
        self._last_look: tuple[float, Mapping[str, str]] | None = None

    def looked(self, passed_over: Mapping[str, str] | None) -> None:
        """Take note of checkpoints skipped by the last scan; None: there was no scan."""
        self._last_look = None if passed_over is None else (self._clock.now(), passed_over)

    def already(self, decision: Decision | None, *, agent_knows: bool) -> Choice | None:
        """Return what needs no look: nothing, or what was whole a moment ago; None: an agent has to choose.

        `agent_knows`: the agents that look know all that is known of checkpoints.
        """
        looked, self._last_look = self._last_look, None
        if not self._plan.has_checkpoints or (agent_knows and _is_from_scratch(decision)):
            return Choice()
        return self._seen(decision, looked)

    def _seen(
        self, decision: Decision | None, looked: tuple[float, Mapping[str, str]] | None
    ) -> Choice | None:
        """Return the newest checkpoint if a restart in place was decided from it, and it was whole a moment ago.

        Not where copies are kept: choosing puts them back, too; nor where only all agents together see it.
        """
        saves, newest = self._plan.saves, self._saves.newest
        if saves is not None and (saves.keeps_copies or saves.is_local):
            return None
        if decision is None or not decision.stays_in_place or decision.delay_s:
            return None
        if looked is None or newest is None or newest[0] != decision.resume_step:
            return None
        looked_t, why_not = looked
        is_fresh = self._clock.now() - looked_t < LOOK_LASTS_S
        return Choice(*newest, why_not) if is_fresh else None

    def criteria(self, decision: Decision | None) -> dict[str, Any]:
        """Return what an agent is to choose by: what was whole when it was decided may not be now."""
        limit = decision.resume_step if decision else None
        return {
            "limit": NO_STEP
            if _is_from_scratch(decision) or (decision is None and self._begins_without)
            else limit,
            "avoid": self._saves.avoided,
            "deaths": self.all_deaths(),
            "unreadable": self._saves.unreadable,
            "verified": [*self._earlier_marks, *self._saves.marks],
        }

    @property
    def _earlier_marks(self) -> tuple[Mapping[str, Any], ...]:
        """What earlier phases have verified, where no attempt of this one has saved: they ended a moment ago."""
        saves = self._plan.saves
        return () if saves is None or self._saves.steps or saves.since_s is not None else saves.marks

    @property
    def _begins_without(self) -> bool:
        """Whether the phase leaves alone what was there before it."""
        return self._plan.saves is not None and self._plan.saves.since_s is not None

    def all_deaths(self) -> list[float]:
        """Return when writers of earlier attempts died, not having come to their own end; seconds since the epoch."""
        ends = [line for line in self._journal.lines if isinstance(line, IncidentLine)]
        return sorted({*(death for line in ends for death in line.deaths or ()), *self.deaths})

    # -- what is said of it -------------------------------------------------------------------------

    def first(self, chosen: Choice, attempt: int) -> Choice:
        """Return what the phase begins with, and say whose that is."""
        saves = self._plan.saves
        if saves is None:
            return chosen
        if (
            saves.since_s is not None
        ):  # the look has shown what counts for nothing, which the agent does not know
            newest = None if saves.is_local else self._saves.newest
            chosen = Choice(*(newest or (None, None)))
        began_s = saves.run_began_s
        if began_s is not None and (earlier := self._saves.earlier(began_s)):
            self._tell_earlier(saves, earlier, chosen.step, attempt)
        return chosen

    def _tell_earlier(
        self, saves: SavesPlan, earlier: Sequence[int], begins_with: int | None, attempt: int
    ) -> None:
        """Say that the directory held checkpoints before the run began, and what becomes of them."""
        count, newest = len(earlier), max(earlier)
        if saves.since_s is not None:
            then = "beginning without them; they stay where they are"
        elif begins_with in earlier:
            which = "it" if begins_with == newest else f"step {begins_with}"
            then = f"resuming from {which}; --from-scratch begins without them"
        else:
            return  # an earlier phase of this run has written newer ones there
        what = f"{count} checkpoint{'s' if count > 1 else ''} of an earlier run in {saves.directory}"
        text = f"found {what}, newest step {newest}: {then}"
        line = EarlierSavesLine(count=count, step=newest, resume_step=begins_with)
        self._journal.append(line, t=self._clock.now())
        self._log.note(attempt, 0, 0, text)
        tell(Notice(text=f"{self._plan.phase}: {text}"))

    def passed_over(self, chosen: Choice) -> dict[str, str]:
        """Return, and say, which checkpoints cannot be resumed from, with the reasons."""
        passed_over = dict(list(chosen.why_not.items())[:MAX_PASSED_OVER])
        for name, why in passed_over.items():
            tell(Notice(text=f"{self._plan.phase}: not resumed from {name}: {why}"))
        return passed_over

    def why_elsewhere(self, decision: Decision | None, chosen: Choice) -> str | None:
        """Say why the attempt does not start from the step that was decided; None: it does, or none was."""
        decided = decision.resume_step if decision is not None and self._plan.has_checkpoints else None
        if decided is None or decided == chosen.step:
            return None
        why = self._saves.why_not(decided, chosen.why_not)
        started = "from scratch" if chosen.step is None else f"from step {chosen.step}"
        tell(Notice(text=f"{self._plan.phase}: starts {started}, not from step {decided}: {why}"))
        return why


def _is_from_scratch(decision: Decision | None) -> bool:
    return decision is not None and decision.resume_step is None
