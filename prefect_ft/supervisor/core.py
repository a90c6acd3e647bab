"""The supervisor of one phase: its lifecycle with its state, and the driver that carries out its orders.

It decides nothing about failures: `judge` does. The end of an attempt is raised as AttemptFailedError, for the retry
handler.
"""

from __future__ import annotations

from collections.abc import Callable

from prefect_ft.backends.base import TENURE_ENDED, Backend, Worker
from prefect_ft.clock import PhaseClock
from prefect_ft.journal.judge import Gate
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.model import Decision, Evidence, Incident
from prefect_ft.supervisor.beginning import Beginning
from prefect_ft.supervisor.calls import Calls
from prefect_ft.supervisor.driver import Driver
from prefect_ft.supervisor.ending import Ending
from prefect_ft.supervisor.events import Lost
from prefect_ft.supervisor.failures import AttemptFailedError, HandedOverError
from prefect_ft.supervisor.gang import Gang
from prefect_ft.supervisor.hangs import Hangs
from prefect_ft.supervisor.incidents import has_run
from prefect_ft.supervisor.judging import Judging
from prefect_ft.supervisor.launch import PhasePlan
from prefect_ft.supervisor.lifecycle import Context, Lifecycle
from prefect_ft.supervisor.listening import Listener
from prefect_ft.supervisor.masking import masking
from prefect_ft.supervisor.moving import Move
from prefect_ft.supervisor.parts import Parts
from prefect_ft.supervisor.remote import Remote
from prefect_ft.supervisor.reports import Reports
from prefect_ft.supervisor.resuming import Resuming
from prefect_ft.supervisor.roster import Roster
from prefect_ft.supervisor.runlog import RunLog
from prefect_ft.supervisor.saves import Saves
from prefect_ft.supervisor.stopping import HandOver, StopRequest
from prefect_ft.supervisor.unresumed import Unresumed
from prefect_ft.supervisor.unsaved import Unsaved
from prefect_ft.supervisor.upkeep import Upkeep
from prefect_ft.supervisor.values import Values
from prefect_ft.supervisor.warner import Warner


class Supervisor:
    """Runs the attempts of one phase, one per call of `attempt`; `close` ends what is left."""

    def __init__(
        self,
        plan: PhasePlan,
        backend: Backend,
        *,
        key: str,
        epoch: int,
        journal: MemoryJournal,
        clock: PhaseClock,
        log: RunLog,
        stop: StopRequest,
        check: Callable[[], None],
        gate: Gate | None = None,
        free_since_s: float | None = None,
        driven_by: Callable[..., Driver] = Driver,
    ) -> None:
        """`epoch` is the orchestrator's: agents obey the highest that they have seen.

        `free_since_s` is when the orchestrator before gave its last sign of life, in seconds of CLOCK_BOOTTIME.

        `check` raises LeaseLostError once the run belongs to another orchestrator. `gate` approves decisions.
        `driven_by` creates the driver: with sockets and threads, or a simulated one.
        """
        self.plan, self.journal, self.clock = plan, journal, clock
        self._backend, self._stop = backend, stop
        self._calls = Calls()
        self._reports = Reports(plan.sources, plan.policy.systems, journal, clock)
        self._upkeep = Upkeep(plan.upkeep, lambda: self._calls.soon(_nothing))
        self._roster = Roster(
            run_id=plan.run_id,
            phase_index=plan.phase_index,
            key=key,
            epoch=epoch,
            loss=lambda worker: self._loss(worker.system, worker),
            all_look=plan.saves is not None and plan.saves.is_local,
        )
        self._lifecycle = self._build_context(log, Gang(self._roster, key), epoch, free_since_s, gate)
        self._driver = driven_by(
            self._lifecycle,
            backend,
            stop=stop,
            calls=self._calls,
            mask=masking(plan.secret_env.values()),
            check=check,
        )

    def _build_context(
        self, log: RunLog, gang: Gang, epoch: int, free_since_s: float | None, gate: Gate | None
    ) -> Lifecycle:
        plan, journal, clock, roster = self.plan, self.journal, self.clock, self._roster
        saves = Saves()
        parts = Parts() if plan.saves is not None and plan.saves.is_local else None
        if plan.saves is not None and plan.saves.since_s is not None:
            saves.fence(0.0, plan.saves.since_s)
        hangs = Hangs(plan.suspension, journal, clock, self._sample_every)
        warner = Warner(plan.phase, journal, clock)
        unsaved = Unsaved(plan.saves if plan.policy.autorestart else None, warner, clock)
        listener = Listener(
            plan.phase,
            log=log,
            saves=saves,
            unsaved=unsaved,
            unresumed=Unresumed(warner, journal),
            reports=self._reports,
            hangs=hangs,
            values=Values(plan.phase, plan.watch, journal, clock),
            journal=journal,
            clock=clock,
            system_of=lambda number: roster.worker(number).system,
            evidence=lambda number: self._backend.evidence(roster.worker(number), is_gone=True),
            tenure_ends=self._stop.hand_over,
            parts=parts,
        )
        resuming = Resuming(plan, saves, journal, clock, log)
        remote = self._remote = self._remote_scan(listener)
        ending = Ending(plan, saves, journal, clock, self._evidence)
        context = Context(
            plan=plan,
            epoch=epoch,
            free_since_s=free_since_s,
            roster=roster,
            gang=gang,
            listener=listener,
            saves=saves,
            parts=parts,
            remote=remote,
            reports=self._reports,
            hangs=hangs,
            upkeep=self._upkeep,
            beginning=Beginning(plan, journal, clock, resuming),
            resuming=resuming,
            judging=Judging(plan, journal, clock, ending.known_saves, gate),
            journal=journal,
            clock=clock,
            stop=self._stop,
        )
        return Lifecycle(context, ending=ending, unsaved=unsaved, loss=self._loss)

    def _remote_scan(self, listener: Listener) -> Remote | None:
        """Return the scan of a URL; None: agents scan a directory."""
        saves = self.plan.saves
        if saves is None or saves.look is None:
            return None
        return Remote(
            saves.look,
            saves.look_every_s,
            self._calls,
            hear=lambda event: listener.hear(0, event),
            step_now=lambda: listener.attempt.last_step if listener.attempt is not None else None,
            token=lambda: self._lifecycle.token,
        )

    def _sample_every(self, period_s: float) -> None:
        self._lifecycle.sample_every(period_s)

    # -- what the infrastructure knows --------------------------------------------------------------

    def _evidence(self, number: int) -> Evidence | None:
        """Return what the infrastructure knows about the end of a process in a worker; None without a worker."""
        if number not in self._roster.numbers:
            return None
        return self._backend.evidence(self._roster.worker(number), is_gone=False)

    def _loss(self, system: str, worker: Worker | None) -> Lost:
        evidence = None if worker is None else self._backend.evidence(worker, is_gone=True)
        if evidence is not None and evidence.rule == TENURE_ENDED:
            self._stop.hand_over(evidence.text, HandOver.OVER)
        return Lost(system_answers=self._backend.answers(system), evidence=evidence)

    # -- what the phase asks ------------------------------------------------------------------------

    def rejoin(self, *, by_hand: bool) -> None:
        """Adopt what an earlier orchestrator left: workers, an attempt that runs or has ended.

        Called before the first `attempt`, which continues it. `by_hand`: a person asked for it.
        """
        found = self._backend.find()
        for each in found:
            self._driver.found(each.worker, each.address)
        self._lifecycle.adopt(found, self._driver.now_s(), by_hand=by_hand)
        self._driver.run(lambda: self._lifecycle.is_resting or self._lifecycle.is_running)

    def move(self, move: Move, *, by_hand: bool) -> Decision:
        """Continue the phase in its next tenure; return the decision about the end of the earlier one.

        Called instead of `rejoin`: remaining workers of the earlier tenure are ended.
        """
        left = [each.worker for each in self._backend.find()]
        if left:  # on a system of both tenures that did not answer as the earlier one was left
            self._backend.destroy(left)
        return self._lifecycle.move(move, self._driver.now_s(), by_hand=by_hand)

    def attempt(self) -> None:
        """Run the next attempt; returns when the phase is complete, raises AttemptFailedError otherwise.

        Raises HandedOverError where the next tenure continues it.
        """
        self._reports.open(self._calls)
        self._lifecycle.begin(self._driver.now_s())
        self._driver.run(lambda: self._lifecycle.is_resting)
        if self._lifecycle.outcome is not None:
            raise self._lifecycle.outcome

    # -- what a holder asks that decides by itself --------------------------------------------------

    @property
    def attempts(self) -> int:
        """The number of the last attempt, from 1; 0: none has begun."""
        return self._lifecycle.number

    @property
    def last_incident(self) -> Incident:
        """What ended the last attempt that has ended."""
        outcome = self._lifecycle.outcome
        if isinstance(outcome, AttemptFailedError):
            return outcome.incident
        return self.journal.history()[-1].incident

    def start(self) -> AttemptFailedError | None:
        """Carry out the last decision; return once ranks run, or have run, or the obstacle that prevented it.

        Raises HandedOverError where its systems were taken away.
        """
        self._lifecycle.begin(self._driver.now_s())
        self._driver.run(lambda: self._lifecycle.is_resting or self._lifecycle.is_running)
        outcome = self._lifecycle.outcome if self._lifecycle.is_resting else None
        if isinstance(outcome, HandedOverError):
            raise outcome
        return None if outcome is None or has_run(outcome.incident) else outcome

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the running attempt, at most for that time; return whether it has ended."""
        self._driver.run(lambda: self._lifecycle.is_resting, timeout_s)
        return self._lifecycle.is_resting

    def end(self, why: str) -> None:
        """Kill the running attempt, if there is one, at once and without a warning to its ranks."""
        self._lifecycle.end(why, self._driver.now_s())
        self.wait()

    # -- the end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the workers and everything that runs in them. Idempotent."""
        self._stop_listening()
        self._driver.close()

    def hang_up(self) -> None:
        """Leave the workers, with everything that runs in them, to the next orchestrator."""
        self._stop_listening()
        self._driver.hang_up()

    def _stop_listening(self) -> None:
        if self._remote is not None:
            self._remote.close()
        self._reports.close()
        self._upkeep.close()
        self._calls.close()


def _nothing() -> None:
    """Do nothing: a call that only wakes the supervisor."""
