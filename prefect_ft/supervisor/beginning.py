"""How an attempt begins: what its ranks get, what the journal says of it, what is known of it from then on."""

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
    """Puts the attempts of one phase together."""

    def __init__(
        self, plan: PhasePlan, journal: MemoryJournal, clock: PhaseClock, resuming: Resuming
    ) -> None:
        self._plan, self._journal, self._clock, self._resuming = plan, journal, clock, resuming
        self._begun_t = 0.0

    def note(self) -> None:
        """Take note that the last decision is being carried out from now on."""
        self._begun_t = round(self._clock.now(), 6)

    def attempt(self, number: int, placement: tuple[str, ...], start: Start) -> Attempt:
        """Return what is known of an attempt whose ranks are about to start, or are there."""
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
        """Return what the ranks of an attempt get; raises WorkerGoneError."""
        history = self._journal.history()
        if decision is None:
            choice = self._resuming.first(choice, number)
        passed_over = self._resuming.passed_over(choice)
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
            passed_over=passed_over,
            skip_eval_at_step=skip_eval_at(self._plan.policy, history),
        )

    def _decisions_before_first(self) -> int:
        """Count the decisions that were made before the first attempt, which may be the one to come."""
        starts = (line.decisions or 0 for line in self._journal.lines if isinstance(line, AttemptLine))
        return next(starts, len(self._journal.history()))

    def line(self, launch: Launch, token: Token) -> AttemptLine:
        """Return what the journal says of an attempt; agents keep it for a comeback."""
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
            passed_over=launch.passed_over,
            decisions=len(self._journal.history()),
            begun_t=self._begun_t,
        )
