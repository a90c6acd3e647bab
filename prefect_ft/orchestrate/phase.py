"""The execution of a phase: assembled from its job, run and journal, begun or resumed, and closed.

Knows nothing of Prefect: the caller passes the function that runs the attempts.
"""

from __future__ import annotations

import contextlib
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from prefect_ft.amounts import count
from prefect_ft.backends.kind import kind_of
from prefect_ft.clock import PhaseClock, seconds_since
from prefect_ft.config import JobConfig, resolved
from prefect_ft.decide import advised, is_in_doubt, limits_of
from prefect_ft.errors import ComebackError, JournalError, LeaseLostError
from prefect_ft.files import write_json
from prefect_ft.formats import written_by
from prefect_ft.journal.judge import judge, judge_pending
from prefect_ft.journal.lines import Journal, head_of
from prefect_ft.journal.records import EndLine, PhaseLine
from prefect_ft.journal.summary import PhaseSummary, summarise
from prefect_ft.model import CONTINUES, RESTARTS, Decision, Incident
from prefect_ft.observe import Decided, Notice, PhaseEnded, PhaseStarted, tell
from prefect_ft.orchestrate.advisor import ask, excerpt_of
from prefect_ft.orchestrate.earlier import (
    isolated_before,
    unfinished_directory,
)
from prefect_ft.orchestrate.placing import runtime_of
from prefect_ft.orchestrate.plan import advisor_plan, phase_plan
from prefect_ft.orchestrate.tenures import Tenancy
from prefect_ft.orchestrate.workers import backend_of
from prefect_ft.run import JOURNAL, SUMMARY, Holding, Run
from prefect_ft.run.isolation_record import Recorder
from prefect_ft.supervisor import (
    TIMED_OUT,
    AttemptFailedError,
    Gate,
    HandedOverError,
    PhasePlan,
    RunLog,
    StopRequest,
    Supervisor,
    comebacks_without_progress,
)
from prefect_ft.supervisor.moving import tenures

RunAttempts = Callable[[Supervisor], None]
"""Runs a supervisor's attempts until a decision ends the phase; raises any error that prevents that."""


class PhaseExecution:
    """The objects of one phase. A phase that an earlier orchestrator began is resumed."""

    def __init__(
        self,
        job: JobConfig,
        index: int,
        holding: Holding,
        stop: StopRequest,
        tenancy: Tenancy | None = None,
    ) -> None:
        """Raises ComebackError if the phase cannot be resumed, other errors if it cannot begin.

        `tenancy` has the systems of the phase, where the job does not name them.
        """
        directory = unfinished_directory(holding.run, index)
        self._is_new = directory is None
        self._stop, self._tenancy = stop, tenancy
        self._timed_out: CancelledError | None = None
        """The Prefect timeout that stopped the phase."""
        with self._leaving_workers_alone():
            self._assemble(job, index, holding, stop, directory)

    def _assemble(
        self, job: JobConfig, index: int, holding: Holding, stop: StopRequest, directory: Path | None
    ) -> None:
        self._job, self._run = job, holding.run
        self._runtime = runtime_of(holding.run)
        self._directory = directory or holding.run.add_phase(job.phases[index].name, index, resolved(job))
        self._journal = Journal(_journal_path(job, self._directory, holding.run), holding.lease.check)
        isolated = isolated_before(holding.run, self._directory)
        self._plan = phase_plan(
            job, index, holding.run, self._directory, lines=self._journal.lines, isolated=isolated
        )
        self._advisor = advisor_plan(job, index, holding.run, self._plan.env)
        self._clock = PhaseClock(_start_s(self._journal))
        self._log = RunLog(
            self._directory / "run.log",
            self._runtime / f"{self._directory.name}.places",
            job.run_log_mb << 20,
        )
        self._backend = backend_of(job, index, holding.run, self._plan, self._runtime)
        self._gate = Gate(
            self._plan.ask,
            self._plan.phase,
            answers=lambda number: holding.run.answer_to(self._directory.name, number),
            clock=self._clock,
            stop=stop,
        )
        self._supervisor = Supervisor(
            self._plan,
            self._backend,
            key=holding.run.key,
            epoch=holding.lease.epoch,
            journal=self._journal,
            clock=self._clock,
            log=self._log,
            stop=stop,
            check=holding.lease.check,
            gate=self._gate,
            free_since_s=holding.lease.free_since_s,
        )

    @property
    def plan(self) -> PhasePlan:
        """The plan of the phase."""
        return self._plan

    def decide(self, error: AttemptFailedError) -> Decision:
        """Return what is decided about the end of an attempt; it is decided once, and recorded before that."""
        if error.decision is None:
            error.incident = self._advised(error.incident)
            error.decision = judge(
                self._journal,
                self._plan.policy,
                error.incident,
                self._clock,
                gate=self._gate,
                **error.facts,
            )
            attempt = error.incident.attempt or 0
            tell(
                Decided(
                    phase=self._plan.phase,
                    attempt=attempt,
                    incident=error.incident,
                    decision=error.decision,
                )
            )
        return error.decision

    def _advised(self, incident: Incident) -> Incident:
        """Return an incident with what the job's advisor says of it, where its class is in doubt."""
        if self._advisor is None or not is_in_doubt(incident):
            return incident
        tell(Notice(text=f"{self._plan.phase}: asks {self._advisor.command[0]} why the attempt failed"))
        excerpt = excerpt_of(self._directory / "run.log", incident.attempt, incident.worker)
        advice = ask(self._advisor, incident, excerpt, lambda: self._stop.wanted is not None)
        return advised(self._plan.policy, self._journal.history(), incident, advice)

    def execute(self, run_attempts: RunAttempts, *, by_hand: bool = False) -> PhaseSummary:
        """Run the phase to its end, and leave no worker behind. `by_hand`: a person requested it.

        If this process has to end earlier (the lease is lost, or the process is stopped), it leaves the workers
        running for the next orchestrator.
        """
        with self._recording(), self._isolating(), self._watching_tenure():
            return self._execute(run_attempts, by_hand=by_hand)

    def _recording(self) -> AbstractContextManager[None]:
        """Return a context that records isolated systems in the quarantine, if the job has one."""
        if self._job.quarantine is None:
            return contextlib.nullcontext()
        recorder = Recorder(
            Path(self._job.quarantine),
            self._directory,
            lambda: self._journal.lines,
            ttl_s=self._plan.policy.isolation_ttl_s,
            run=self._run.run_id,
            job=self._job.name,
            phase=self._plan.phase,
        )
        return recorder.recording()

    def _watching_tenure(self) -> AbstractContextManager[None]:
        """Return a context that asks for the hand-over when the systems are about to be taken away."""
        if self._tenancy is None:
            return contextlib.nullcontext()
        return self._tenancy.watched(self._plan, self._stop, lambda: self._journal.lines)

    def _isolating(self) -> AbstractContextManager[None]:
        """Return a context that announces isolated systems outside the run, if the job asks for it."""
        infrastructure = self._job.infrastructure_of(self._plan.phase_index)
        return kind_of(infrastructure).isolating(
            infrastructure,
            self._run.run_id,
            self._runtime,
            lambda: self._journal.lines,
            ends_with_the_run=self._job.quarantine is None,
        )

    def _execute(self, run_attempts: RunAttempts, *, by_hand: bool) -> PhaseSummary:
        try:
            decision = self._decide(run_attempts, by_hand=by_hand)
        except (Exception, KeyboardInterrupt, CancelledError) as exc:
            if isinstance(exc, (LeaseLostError, ComebackError)):
                self._leave()
                raise
            if isinstance(exc, HandedOverError):
                self._supervisor.close()
                self._close_files()
                raise
            self._supervisor.close()
            status = "failed" if isinstance(exc, Exception) else "cancelled"
            with contextlib.suppress(JournalError):  # the first error is the one to report
                self._close(status, str(exc) or repr(exc))
            raise
        except BaseException:
            self._leave()
            raise
        self._supervisor.close()
        summary = self._close(*decision)
        if self._timed_out is not None:
            raise self._timed_out
        return summary

    def _decide(self, run_attempts: RunAttempts, *, by_hand: bool) -> tuple[str, str]:
        """Run the attempts; return the status and the reason of the phase's end."""
        with self._leaving_workers_alone():
            pending = None if self._is_new else self._judge_pending()
            self._open()
            if pending is not None and pending.action not in CONTINUES:
                return _status(pending), pending.reason
            if not self._is_new:
                moved = self._rejoin(by_hand=by_hand)
                if moved is not None and moved.action not in RESTARTS:
                    return _status(moved), moved.reason
        if not self._is_new:
            died = comebacks_without_progress(self._journal.lines)
            limit = self._job.max_orchestrator_restarts
            if died > limit:
                times = count(died, "time")
                return (
                    "failed",
                    f"the orchestrator died {times} without progress; max_orchestrator_restarts is {limit}",
                )
        try:
            run_attempts(self._supervisor)
        except CancelledError as exc:
            self._timed_out = exc
            self._stop_attempt()
        decision = self._journal.history()[-1].decision
        assert decision is not None
        return _status(decision), decision.reason

    def _rejoin(self, *, by_hand: bool) -> Decision | None:
        """Take up what an earlier orchestrator left; return what was decided if that was in another tenure."""
        move = None if self._tenancy is None else self._tenancy.move(self._journal.lines)
        self._note_tenure()
        if move is not None:
            return self._supervisor.move(move, by_hand=by_hand)
        self._supervisor.rejoin(by_hand=by_hand)
        return None

    def _note_tenure(self) -> None:
        """Record which systems the phase has from now on, where a scheduler lends them."""
        if self._tenancy is None:
            return
        had = tenures(self._journal.lines)
        if not had or had[-1].name != self._tenancy.tenure.name:
            self._journal.append(self._tenancy.line, t=self._clock.now())

    def _stop_attempt(self) -> None:
        """End the running attempt after a Prefect timeout, which can be raised at any point."""
        self._stop.ask(TIMED_OUT)
        history = self._journal.history()
        decision = history[-1].decision if history else None
        if decision is None or decision.action in CONTINUES:
            with contextlib.suppress(AttemptFailedError):
                self._supervisor.attempt()

    def _judge_pending(self) -> Decision | None:
        return judge_pending(self._journal, self._plan.policy, self._clock, self._gate)

    @contextlib.contextmanager
    def _leaving_workers_alone(self) -> Iterator[None]:
        """Turn errors of a comeback into ComebackError, which leaves the workers running."""
        try:
            yield
        except (LeaseLostError, ComebackError):
            raise
        except Exception as exc:
            if self._is_new:
                raise
            raise ComebackError(f"the run cannot be resumed now: {exc}") from exc

    def _open(self) -> None:
        plan = self._plan
        if head_of(self._journal.lines) is None:
            since_s = plan.saves.since_s if plan.saves is not None else None
            line = PhaseLine(
                run=self._run.run_id,
                job=self._job.name,
                phase=plan.phase,
                index=plan.phase_index,
                mode=plan.policy.mode,
                systems=plan.policy.systems,
                isolated=plan.policy.isolated,
                workers=plan.policy.workers,
                ranks_per_worker=plan.ranks_per_worker,
                target_step=plan.policy.target_step,
                limits=limits_of(plan.policy),
                saves_since_s=since_s or 0.0,
                **written_by("journal"),
            )
            self._journal.append(line, t=0.0)
            self._note_tenure()
        self._journal.sync()
        self._write_summary()
        tell(
            PhaseStarted(
                run_id=self._run.run_id,
                phase=plan.phase,
                index=plan.phase_index,
                phases=plan.phases,
                directory=self._directory,
                target_step=plan.policy.target_step,
            )
        )

    def _close(self, status: str, reason: str) -> PhaseSummary:
        try:
            self._journal.append(EndLine(status=status, reason=reason), t=self._clock.now())
            self._journal.sync()
        finally:
            summary = self._release()
            tell(PhaseEnded(phase=self._plan.phase, status=status, reason=reason))
        return summary

    def _release(self) -> PhaseSummary:
        if self._log.lost_lines:
            lines = count(self._log.lost_lines, "line of output is", "lines of output are")
            tell(Notice(text=f"{lines} missing in run.log: no space left"))
        summary = self._write_summary()
        with contextlib.suppress(OSError):
            self._run.describe(isolated=sorted({*self._plan.policy.isolated, *summary.isolated_systems}))
        self._close_files()
        return summary

    def _leave(self) -> None:
        self._supervisor.hang_up()
        self._close_files()

    def _close_files(self) -> None:
        self._backend.close()
        self._log.close()
        self._journal.close()

    def _write_summary(self) -> PhaseSummary:
        summary = summarise(self._journal.lines)
        try:
            write_json(self._directory / SUMMARY, summary.to_json())
        except OSError as exc:
            remedy = "`prefect-ft report` does not need it"
            tell(Notice(text=f"cannot write {SUMMARY}: {exc.strerror}; {remedy}"))
        return summary


def _status(decision: Decision) -> str:
    if decision.completes:
        return "completed"
    return "cancelled" if decision.cancels else "failed"


def _start_s(journal: Journal) -> float:
    """Return the current time of a phase, from its journal's first line."""
    if not journal.lines:
        return 0.0
    first = journal.lines[0]
    return max(journal.last_t, float(first.t) + seconds_since(first.utc))


def _journal_path(job: JobConfig, directory: Path, run: Run) -> Path:
    """Return the path of a phase's journal; a journal in `journal_dir` is linked into the phase's directory."""
    link = directory / JOURNAL
    if job.journal_dir is not None and not link.is_symlink():
        link.symlink_to(Path(job.journal_dir) / f"{run.run_id}-{directory.name}.jsonl")
    return link
