"""Chooses what an attempt resumes from: the decided checkpoint, or the newest good one; and reports the choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from prefect_ft.amounts import count
from prefect_ft.clock import PhaseClock
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import CheckpointLine, EarlierSavesLine, IncidentLine
from prefect_ft.model import Decision, FailureClass
from prefect_ft.observe import Notice, tell
from prefect_ft.supervisor.events import Chosen
from prefect_ft.supervisor.launch import PhasePlan, SavesPlan
from prefect_ft.supervisor.runlog import RunLog
from prefect_ft.supervisor.saves import Saves
from prefect_ft.worker.checkpoints import ALL, CUT, NOTHING
from prefect_ft.worker.checkpoints.names import COMPANION_NAME, PART_NAME

MAX_SKIPPED_REPORTED = 5
"""The most skipped checkpoints that are reported at the start of an attempt."""

NO_STEP = -1
"""The limit with which an agent chooses no checkpoint, but still learns which are known."""

SCAN_VALID_S = 0.5
"""How long a scan of the checkpoints stays valid; a person may take hours to approve a restart."""


class Choice(NamedTuple):
    """The checkpoint to resume from, None: from scratch; and why others were skipped, by name.

    `paths` are those of each worker's part of it, where every worker has one.
    """

    step: int | None = None
    path: str | None = None
    why_not: Mapping[str, str] = {}
    paths: Mapping[int, str] = {}

    @classmethod
    def of(cls, chosen: Chosen) -> Choice:
        """Return an agent's choice."""
        return cls(chosen.step, chosen.path, chosen.why_not)


class _Scan(NamedTuple):
    """The last scan of an attempt, at a time of the phase's clock. `is_final`: nobody can have written since."""

    t: float
    why_not: Mapping[str, str]
    is_final: bool


class Resuming:
    """Chooses for one phase. `deaths` are when writers died without an orchestrator; seconds since the epoch."""

    def __init__(
        self, plan: PhasePlan, saves: Saves, journal: MemoryJournal, clock: PhaseClock, log: RunLog
    ) -> None:
        self._plan, self._saves = plan, saves
        self._journal, self._clock, self._log = journal, clock, log
        self.deaths: list[float] = []
        self._last_scan: _Scan | None = None

    def scanned(self, skipped: Mapping[str, str] | None, *, is_final: bool) -> None:
        """Keep the checkpoints skipped by the last scan; None: there was no scan."""
        self._last_scan = None if skipped is None else _Scan(self._clock.now(), skipped, is_final)

    def known_choice(self, decision: Decision | None, *, agent_knows: bool) -> Choice | None:
        """Return a choice that needs no scan: none, or what was good a moment ago; None: an agent has to choose.

        `agent_knows`: the agents that scan know every known checkpoint. Where copies are kept an agent is asked also
        for a restart from scratch: a damaged file gives way then.
        """
        scanned, self._last_scan = self._last_scan, None
        saves = self._plan.saves
        asks = (saves is not None and saves.keeps_copies) or self._goes_on(decision)
        is_settled = agent_knows and _is_from_scratch(decision) and not asks
        if not self._plan.has_checkpoints:
            return Choice()
        if is_settled:
            return Choice(why_not=scanned.why_not) if scanned is not None else Choice()
        return self._seen(decision, scanned)

    def _seen(self, decision: Decision | None, scanned: _Scan | None) -> Choice | None:
        """Return the newest checkpoint if a restart in place was decided from it, and it was good a moment ago.

        Not where copies are kept: choosing also restores them; nor where only all agents together see it.
        """
        saves, newest = self._plan.saves, self._saves.newest
        if saves is not None and (saves.keeps_copies or saves.is_local):
            return None
        if decision is None or not decision.stays_in_place or decision.delay_s:
            return None
        if scanned is None or newest is None or newest[0] != decision.resume_step:
            return None
        is_fresh = scanned.is_final and self._clock.now() - scanned.t < SCAN_VALID_S
        return Choice(*newest, scanned.why_not) if is_fresh else None

    def criteria(self, decision: Decision | None) -> dict[str, Any]:
        """Return an agent's criteria: a checkpoint that was good at the decision may not be now."""
        return {
            "limit": self._limit(decision),
            "gives_way": self._gives_way(decision),
            "avoid": sorted({*self._saves.avoided, *(self._saves.steps if self._goes_on(decision) else ())}),
            "deaths": self.all_deaths(),
            "unreadable": self._saves.unreadable,
            "verified": [*self._earlier_marks, *self._saves.marks],
        }

    def _limit(self, decision: Decision | None) -> int | None:
        """Return the highest step to resume from; None: there is no limit."""
        if decision is None:
            return NO_STEP if self._begins_without else None
        if decision.resume_step is not None:
            return decision.resume_step
        if not self._goes_on(decision):
            return NO_STEP
        return self._below_failed

    def _goes_on(self, decision: Decision | None) -> bool:
        """Return whether a restart that was decided from scratch goes on with what an earlier phase saved.

        Decisions know only what the phase itself has saved. Mostly it is what its first attempt was given.
        """
        saves = self._plan.saves
        if decision is None or decision.resume_step is not None or saves is None or saves.is_local:
            return False
        return bool(self._earlier_marks)

    @property
    def _below_failed(self) -> int | None:
        """The step below all of before the phase that could not be loaded or gave bad numbers; None: none did."""
        failed = {
            end.incident.started_from or 0
            for end in self._journal.lines
            if isinstance(end, IncidentLine) and end.incident.failure_class in ("checkpoint", "numeric")
        }
        earlier = failed.difference(
            line.step for line in self._journal.lines if isinstance(line, CheckpointLine)
        )
        return min(earlier) - 1 if earlier else None

    def _gives_way(self, decision: Decision | None) -> str:
        """Return which overwritten files that do not count give way to copies, or are renamed."""
        if self._begins_without and not self._saves.steps:
            return NOTHING
        return CUT if _is_from_scratch(decision) and not self._has_failed_of("checkpoint") else ALL

    def _has_failed_of(self, *classes: FailureClass) -> bool:
        """Return whether an attempt of the phase has failed of one of these."""
        ends = (line for line in self._journal.lines if isinstance(line, IncidentLine))
        return any(end.incident.failure_class in classes for end in ends)

    @property
    def _earlier_marks(self) -> tuple[Mapping[str, Any], ...]:
        """Checkpoints that earlier phases verified."""
        saves = self._plan.saves
        return () if saves is None or saves.since_s is not None else saves.marks

    @property
    def _begins_without(self) -> bool:
        """Whether the phase ignores checkpoints from before it."""
        return self._plan.saves is not None and self._plan.saves.since_s is not None

    def all_deaths(self) -> list[float]:
        """Return when writers of earlier attempts died or were killed; seconds since the epoch."""
        ends = [line for line in self._journal.lines if isinstance(line, IncidentLine)]
        return sorted({*(death for line in ends for death in line.deaths or ()), *self.deaths})

    # -- reporting ----------------------------------------------------------------------------------

    def first(self, chosen: Choice, attempt: int) -> Choice:
        """Return what the phase begins with, and report checkpoints of an earlier run."""
        saves = self._plan.saves
        if saves is None:
            return chosen
        if saves.since_s is not None:  # the scan has shown what is ignored, which the agent does not know
            newest = None if saves.is_local else self._saves.newest
            chosen = Choice(*(newest or (None, None)))
        began_s = saves.run_began_s
        if began_s is not None and (earlier := self._saves.earlier(began_s)):
            self._report_earlier(saves, earlier, chosen.step, attempt)
        return chosen

    def _report_earlier(
        self, saves: SavesPlan, earlier: Sequence[int], begins_with: int | None, attempt: int
    ) -> None:
        """Report that the directory held checkpoints before the run began, and whether they are used."""
        newest = max(earlier)
        if saves.since_s is not None:
            then = "beginning without them; they stay where they are"
        elif begins_with in earlier:
            which = "it" if begins_with == newest else f"{self._saves.noun} {begins_with}"
            then = f"resuming from {which}; --from-scratch begins without them"
        else:
            return  # an earlier phase of this run has written newer ones there
        what = f"{count(len(earlier), 'checkpoint')} of an earlier run in {saves.directory}"
        text = f"found {what}, newest {self._saves.noun} {newest}: {then}"
        line = EarlierSavesLine(count=len(earlier), step=newest, resume_step=begins_with)
        self._journal.append(line, t=self._clock.now())
        self._log.note(attempt, 0, 0, text)
        tell(Notice(text=f"{self._plan.phase}: {text}"))

    def report_skipped(self, chosen: Choice) -> dict[str, str]:
        """Report and return the skipped checkpoints, with the reasons; of one that was chosen, no parts."""
        beside = (PART_NAME, COMPANION_NAME) if chosen.step is not None else ()
        reasons = [(name, why) for name, why in chosen.why_not.items() if why not in beside]
        skipped = dict(reasons[:MAX_SKIPPED_REPORTED])
        for name, why in skipped.items():
            tell(Notice(text=f"{self._plan.phase}: not resumed from {name}: {why}"))
        return skipped

    def why_elsewhere(self, decision: Decision | None, chosen: Choice) -> str | None:
        """Report and return why the attempt does not start from the decided step; None: it does, or there is none."""
        decided = decision.resume_step if decision is not None and self._plan.has_checkpoints else None
        if _is_from_scratch(decision) and chosen.step is not None:
            text = f"goes on from {self._saves.noun} {chosen.step}, which was saved earlier in the run"
            tell(Notice(text=f"{self._plan.phase}: {text}"))
        if decided is None or decided == chosen.step:
            return None
        why = self._saves.why_not(decided, chosen.why_not)
        number = self._saves.noun
        started = "from scratch" if chosen.step is None else f"from {number} {chosen.step}"
        tell(Notice(text=f"{self._plan.phase}: starts {started}, not from {number} {decided}: {why}"))
        return why


def _is_from_scratch(decision: Decision | None) -> bool:
    return decision is not None and decision.resume_step is None
