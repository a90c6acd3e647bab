"""Begins attempts: what the ranks get, the journal's line, and the attempt's initial state."""

from __future__ import annotations

from prefect_ft.clock import PhaseClock
from prefect_ft.decide import skip_eval_at, start_counts
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import AttemptLine
from prefect_ft.model import RESTARTS, Decision
from prefect_ft.supervisor.attempt import Attempt, Start
from prefect_ft.supervisor.comeback import has_run
from prefect_ft.supervisor.gang import Gang
from prefect_ft.supervisor.launch import Launch, PhasePlan, ranks_by_worker
from prefect_ft.supervisor.resuming import Choice, Resuming
from prefect_ft.worker.protocol import Token


class Beginning:
    """Builds the attempts of one phase."""

    def __init__(
        self, plan: PhasePlan, journal: MemoryJournal, clock: PhaseClock, resuming: Resuming
    ) -> None:
        self._plan, self._journal, self._clock, self._resuming = plan, journal, clock, resuming
        self._begun_t = 0.0

    def note(self) -> None:
        """Record when the last decision began to be carried out."""
        self._begun_t = round(self._clock.now(), 6)

    def attempt(self, number: int, placement: tuple[str, ...], start: Start) -> Attempt:
        """Return the state of an attempt whose ranks are about to start, or run already."""
        return Attempt(
            number,
            ranks_by_worker(self._plan, placement),
            self._plan.catalogue,
            start=start,
            progress_pattern=self._plan.progress_pattern,
            has_run_before=has_run(self._journal.lines),
        )

    def launch(
        self, number: int, decision: Decision | None, placement: tuple[str, ...], choice: Choice, gang: Gang
    ) -> Launch:
        """Return the launch of an attempt; raises WorkerGoneError."""
        history = self._journal.history()
        if decision is None:
            choice = self._resuming.first(choice, number)
        skipped = self._resuming.report_skipped(choice)
        return Launch(
            attempt=number,
            restarts=sum(1 for entry in history if entry.decision and entry.decision.action in RESTARTS),
            decision=decision,
            placement=placement,
            start_counts=start_counts(
                self._plan.policy, history, before_first=self._decisions_before_first()
            ),
            master=gang.master,
            has_store=gang.has_store,
            in_process_port=gang.in_process_port,
            in_process_key=gang.in_process_key,
            resume_step=choice.step,
            resume_path=choice.path,
            resume_paths=choice.paths,
            why=self._resuming.why_elsewhere(decision, choice),
            skipped=skipped,
            skip_eval_at_step=skip_eval_at(self._plan.policy, history),
        )

    def _decisions_before_first(self) -> int:
        """Count the decisions before the first attempt, which may be the next one."""
        starts = (line.decisions or 0 for line in self._journal.lines if isinstance(line, AttemptLine))
        return next(starts, len(self._journal.history()))

    def line(self, launch: Launch, token: Token) -> AttemptLine:
        """Return the journal's line for an attempt; agents keep it for a comeback."""
        return AttemptLine(
            attempt=launch.attempt,
            token=token,
            placement=launch.placement,
            start_counts=launch.start_counts,
            resume_step=launch.resume_step,
            resume_path=launch.resume_path,
            decided_step=launch.decision.resume_step if launch.decision else None,
            started_from=launch.resume_step,
            why=launch.why,
            passed_over=launch.skipped,
            decisions=len(self._journal.history()),
            begun_t=self._begun_t,
        )
