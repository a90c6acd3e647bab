"""What a phase goes through, attempt after attempt: a state machine. Facts in, orders out.

It waits for nothing and speaks with nobody: the driver brings facts and the time, and carries orders out. It has only
recovery actions judged that fail, and systems that cannot be used; the end of an attempt is its caller's to judge.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from prefect_ft.backends.base import Found, Worker
from prefect_ft.clock import PhaseClock
from prefect_ft.config import OnDemand
from prefect_ft.decide import initial_placement, is_report, set_aside
from prefect_ft.decide.hang import Hang, odd_rank
from prefect_ft.errors import BackendError, LeaseLostError
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.model import RESTARTS, Decision, Incident
from prefect_ft.observe import AttemptStarted, Notice, tell
from prefect_ft.supervisor.asking import Adoption, AllStopped, Answers, Diagnoses, Until, Wait
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.beginning import Beginning
from prefect_ft.supervisor.comeback import Standing, standing, unheard
from prefect_ft.supervisor.command import Command
from prefect_ft.supervisor.diagnosis import TIMEOUT_S, diagnosis_of, write
from prefect_ft.supervisor.enact import change_for, first_gang
from prefect_ft.supervisor.ending import Ended, Ending
from prefect_ft.supervisor.events import (
    AgentStanding,
    Attached,
    Chosen,
    Event,
    Left,
    Lost,
    Started,
    StartFailed,
)
from prefect_ft.supervisor.failures import AttemptFailedError
from prefect_ft.supervisor.gang import Exchange, Exchanged, ExchangeFailed, Fact, Gang, Order, WorkerGoneError
from prefect_ft.supervisor.hangs import Hangs, incident_of, with_blame
from prefect_ft.supervisor.judging import Judging, Obstacle, Unfit
from prefect_ft.supervisor.launch import Launch, PhasePlan, start_orders
from prefect_ft.supervisor.listening import Listener
from prefect_ft.supervisor.recording import Comeback
from prefect_ft.supervisor.reports import Reports
from prefect_ft.supervisor.resuming import Choice, Resuming
from prefect_ft.supervisor.saves import Saves
from prefect_ft.supervisor.stopping import StopRequest
from prefect_ft.supervisor.times import ANSWER_TIMEOUT_S, CHOOSE_TIMEOUT_S, start_timeout_s
from prefect_ft.supervisor.unsaved import Unsaved
from prefect_ft.supervisor.upkeep import Checks, Upkeep
from prefect_ft.worker.forms import FormError
from prefect_ft.worker.protocol import Token

FILE_CLOCK_S = 0.02
"""How far the time that a file system gives a file may lie behind the clock: a tick or two."""

State = Literal[
    "idle", "adopting", "clearing", "backing-off", "checking", "exchanging", "attaching", "choosing", "starting",
    "running", "diagnosing", "saving", "stopping", "healing", "ended",
]  # fmt: skip
"""`clearing` ends what may run where a decision could not be carried out, or nobody knows what was."""

_OBSTRUCTED: tuple[State, ...] = ("clearing", "idle", "stopping")
"""Where every state leads in which a worker may turn out to be gone, or a wish to stop comes."""

TRANSITIONS: Mapping[State, frozenset[State]] = {
    "idle": frozenset(("adopting", "backing-off", "clearing", "stopping", "ended")),
    "adopting": frozenset(("running", "clearing")),
    "clearing": frozenset(("idle", "backing-off", "stopping", "ended")),
    "backing-off": frozenset(("checking", *_OBSTRUCTED)),
    "checking": frozenset(("exchanging", "choosing", "backing-off", "ended", *_OBSTRUCTED)),
    "exchanging": frozenset(("attaching", *_OBSTRUCTED)),
    "attaching": frozenset(("choosing", *_OBSTRUCTED)),
    "choosing": frozenset(("starting", *_OBSTRUCTED)),
    "starting": frozenset(("running", "saving", *_OBSTRUCTED)),
    "running": frozenset(("running", "diagnosing", "saving", "stopping")),
    "diagnosing": frozenset(("running", "saving", "stopping")),
    "saving": frozenset(("stopping",)),
    "stopping": frozenset(("healing", "ended")),
    "healing": frozenset(("ended",)),
    "ended": frozenset(("backing-off", "stopping", "idle")),
}
"""Which states may follow a state."""

HEEDS_STOP: frozenset[State] = frozenset(
    ("backing-off", "checking", "exchanging", "attaching", "choosing", "starting", "running", "diagnosing")
)
"""The states that a wish to stop ends; the others end by themselves."""

RESTS: frozenset[State] = frozenset(("idle", "ended"))
"""The states in which nothing is waited for."""


Loss = Callable[[str, Worker | None], Lost]
"""Says what became of a worker on a system; None: of which nothing but the system is known."""


class Lifecycle:
    """One phase's attempts. `outcome` is how the last one ended; None: it has not, or the phase is complete."""

    def __init__(
        self,
        plan: PhasePlan,
        *,
        epoch: int,
        gang: Gang,
        listener: Listener,
        saves: Saves,
        reports: Reports,
        hangs: Hangs,
        unsaved: Unsaved,
        upkeep: Upkeep,
        beginning: Beginning,
        resuming: Resuming,
        ending: Ending,
        judging: Judging,
        journal: MemoryJournal,
        clock: PhaseClock,
        stop: StopRequest,
        loss: Loss,
    ) -> None:
        """`epoch` is the orchestrator's: agents obey the highest that they have seen."""
        self._plan, self._epoch, self._gang, self._listener = plan, epoch, gang, listener
        self._saves, self._reports, self._hangs = saves, reports, hangs
        self._unsaved, self._upkeep = unsaved, upkeep
        self._beginning, self._resuming, self._ending, self._judging = beginning, resuming, ending, judging
        self._journal, self._clock, self._stop, self._loss = journal, clock, stop, loss
        self.state: State = "idle"
        self.outcome: AttemptFailedError | None = None
        self._wait: Wait | None = None
        self._now_s = 0.0
        """The driver's clock."""
        self._is_ahead = False
        """Whether the last decision is carried out before anybody asked for the attempt."""
        self._met_ahead: Obstacle | None = None
        """What kept it from being carried out so."""
        self._takes_up = False
        """Whether an earlier life may have begun to carry out the last decision."""
        self._decision: Decision | None = None
        """The one that is being carried out; None: the phase begins."""
        self._number = 0
        """The last attempt's."""
        self._last_started: int | None = None
        self._placement: tuple[str, ...] = ()
        """Where its workers are, or are to be."""
        self._checks: Checks | None = None
        self._exchanging: Exchange | None = None
        """What was ordered last to be done with workers, and what came of it."""
        self._exchange: Exchanged | ExchangeFailed | None = None
        self._choice: Choice | None = None
        self._launch: Launch | None = None
        self._since_t = 0.0
        """Since when the attempt has been watched."""
        self._hang: Hang | None = None
        """The verdict that is being looked into."""
        self._obstacle: Obstacle | None = None
        """What keeps the decision from being carried out, and is judged once nothing runs."""
        self._ended_by: str | None = None
        """Who ended the attempt that ran, if somebody did."""
        self._ended: Ended | None = None
        self._healing: tuple[Incident, Command, float] | None = None
        """The fault that is being mended, by which command, and since when."""
        self._comeback: Comeback | None = None
        self._left: dict[int, Left] = {}
        """What agents of earlier lives left behind that left by themselves."""
        self._early: list[tuple[int, Event | Lost]] = []
        """What agents reported before it was known how the phase stands."""

    # -- what the driver asks ---------------------------------------------------------------------

    @property
    def due_s(self) -> float | None:
        """When `handle` has to be called though nothing is known, by the driver's clock; None: never."""
        return self._wait.due_s if self._wait is not None else None

    @property
    def fence(self) -> LeaseLostError | None:
        """Why nothing may be done to workers any more: they are another orchestrator's."""
        return self._gang.fence

    def handle(self, facts: Sequence[Fact], now_s: float) -> list[Order]:
        """Take what is known now, and return what is to be done. Raises PrefectFTError where that ends the phase."""
        self._now_s = now_s
        for fact in facts:
            if isinstance(fact, (Exchanged, ExchangeFailed)):
                self._exchange = fact
            else:
                for heard in self._gang.handle(fact, now_s):
                    self._listen(heard.worker, heard.event)
        self._advance()
        return self._gang.drain()

    def _listen(self, worker: int, event: Event | Lost) -> None:
        """Take one event; what comes before it is known how the phase stands is put off."""
        if self.state == "adopting":
            self._early.append((worker, event))
        else:
            self._listener.hear(worker, event)

    def _advance(self) -> None:
        """Go from state to state until something has to be waited for."""
        while self._wait is not None:
            state = self.state
            if self._is_ahead and state == "running":
                return  # what becomes of it is seen to when somebody asks
            try:
                if self._wants_stop and state in HEEDS_STOP:
                    self._end()
                elif self._wait.look(self._gang, self._now_s):
                    _NEXT[state](self)
                else:
                    return
            except WorkerGoneError as gone:
                self._meet(gone)

    @property
    def _wants_stop(self) -> bool:
        """Whether the run is to stop, and somebody has asked for the attempt that would be stopped."""
        return self._stop.wanted is not None and not self._is_ahead

    def _go(self, state: State, wait: Wait | None) -> None:
        assert state in TRANSITIONS[self.state], (self.state, state)
        self.state, self._wait = state, wait

    def validate_state(self) -> None:
        """Raise AssertionError where the state contradicts itself; for tests."""
        assert (self._wait is None) == (self.state in RESTS), self.state
        assert self._attempt is None or self._attempt.number == self._number
        assert self.state not in ("running", "diagnosing", "saving") or self._attempt is not None
        assert self.state not in ("stopping", "healing") or self._ended is not None
        assert self.state not in ("exchanging", "attaching", "choosing") or self._attempt is None
        assert self.state != "ended" or self._attempt is None
        self._gang.validate()

    @property
    def _attempt(self) -> Attempt | None:
        """The attempt that runs: what agents report is about it."""
        return self._listener.attempt

    @property
    def _running(self) -> Attempt:
        attempt = self._listener.attempt
        assert attempt is not None
        return attempt

    @property
    def _token(self) -> Token:
        return self._epoch, self._plan.phase_index, self._number

    # -- what the supervisor asks -----------------------------------------------------------------

    @property
    def is_resting(self) -> bool:
        """Whether nothing is waited for: the next attempt may be begun."""
        return self.state in RESTS

    @property
    def is_running(self) -> bool:
        """Whether the ranks of an attempt have been started, and it is waited for its end."""
        return self.state == "running"

    @property
    def number(self) -> int:
        """The last attempt's, from 1; 0: none has begun."""
        return self._number

    @property
    def is_over(self) -> bool:
        """Whether the attempt that runs has ended by itself, or none runs."""
        return self._attempt is None or self._attempt.over

    def begin(self, now_s: float, *, ahead: bool = False) -> None:
        """Begin the next attempt, or go on with the one that has begun. `ahead`: nobody has asked for it yet.

        What goes wrong ahead is seen to when somebody does.
        """
        self._now_s, self._is_ahead = now_s, ahead
        if not self.is_resting:
            return
        self.outcome = self._ended = self._ended_by = None
        if not ahead:
            self._resuming.looked(None)
        self._note_beginning()
        obstacle, self._met_ahead = self._met_ahead, None
        if self._wants_stop:
            self._end()
        elif obstacle is not None:
            self._meet(obstacle)
        else:
            self._enact(self._decision)

    def end(self, why: str, now_s: float) -> None:
        """End the attempt that runs, or begins, if one does."""
        if self.state in HEEDS_STOP:
            self._now_s, self._is_ahead, self._ended_by = now_s, False, why
            self._end()

    def adopt(self, found: Sequence[Found], now_s: float, *, by_hand: bool) -> None:
        """Take up what an earlier life left: workers, an attempt that runs or has ended. `by_hand`: a person asked."""
        self._now_s, self._is_ahead = now_s, True
        self._comeback = Comeback(
            self._epoch, by_hand=by_hand, silent_s=self._clock.now() - self._journal.last_t
        )
        self._saves.recall(self._journal.lines, set_aside(self._plan.policy, self._journal.history()))
        newest = {each.worker.number: each for each in found}
        for number, each in newest.items():
            if each.result is None:
                self._gang.adopt(each.worker, each.address.host)
            else:
                self._gang.keep(each.worker)
                with suppress(FormError):  # what is none is as good as nothing: the worker is made anew
                    self._left[number] = Left.read(each.result)
        living = [number for number, each in newest.items() if each.result is None]
        self._go("adopting", Adoption(living, now_s, ANSWER_TIMEOUT_S))

    def let_go(self) -> None:
        """Let go of all agents; what they run goes on. Idempotent."""
        self._gang.let_go_of_all()
        self._gang.drain()

    # -- coming back ------------------------------------------------------------------------------

    def _adopted(self) -> None:
        """Find out how the phase stands, and go on from there."""
        plan, comeback = self._plan, self._comeback
        agents: dict[int, AgentStanding] = {**self._left, **self._gang.standings()}
        assert comeback is not None
        found = standing(self._journal.lines, agents, plan.phase_index, plan.ranks_per_worker)
        self._number, self._last_started = found.attempt, found.attempt or None
        self._resuming.deaths = [death for agent in agents.values() for death in agent.deaths]
        if found.note is not None:
            self._saves.begin_attempt()
            self._saves.set_aside(set_aside(plan.policy, self._journal.history()))
        comeback.record(
            plan.phase, found, agents, self._gang.reached, journal=self._journal, clock=self._clock
        )
        if found.watched is not None:
            self._watch(found, found.watched)
        self._reports.recall()
        early, self._early = self._early, []
        for worker, event in [*_unheard(agents), *early]:
            self._listener.hear(worker, event)
        if found.watched is None:
            self._takes_up = True
            self._clear()
        else:
            self._run()

    def _watch(self, found: Standing, placement: tuple[str, ...]) -> None:
        """Watch an attempt as if it had been watched all the time."""
        self._set_out(found.attempt, placement, found.resume_path)
        for number in found.missing:
            worker = self._gang.worker(number) if number in self._gang.numbers else None
            self._running.take(number, self._loss(placement[number], worker))

    # -- carrying out a decision ------------------------------------------------------------------

    def _note_beginning(self) -> None:
        """Take note that the last decision is being carried out."""
        self._beginning.note()
        history = self._journal.history()
        self._saves.set_aside(set_aside(self._plan.policy, history))
        self._decision = history[-1].decision if history else None

    def _enact(self, decision: Decision | None) -> None:
        self._decision = decision
        if decision is not None:
            self._placement = decision.placement
            self._go("backing-off", Until(lambda: not decision.delay_s, self._now_s + decision.delay_s))
            return
        placement = initial_placement(self._plan.policy)
        if placement is None:
            workers = self._plan.policy.workers
            raise BackendError(f"phase {self._plan.phase}: too few usable systems for {workers} workers")
        self._placement = placement
        self._go("backing-off", Until(lambda: True))

    def _backed_off(self) -> None:
        self._upkeep.suspect(self._journal.history())
        checks = self._checks = self._upkeep.check(self._placement)
        self._go("checking", Until(lambda: checks.are_over))

    def _checked(self) -> None:
        assert self._checks is not None
        failed = self._checks.failed
        self._upkeep.trust({*self._placement} - {*failed})
        if failed:
            self._meet(Unfit(failed))
            return
        decision = self._decision
        is_first = decision is None or self._last_started is None  # then there is nothing yet that could stay
        change = first_gang(len(self._placement))
        if decision is not None and not is_first:
            change = change_for(decision, self._gang.numbers)
        number, is_taken_up, self._takes_up = decision.n if decision else 0, self._takes_up, False
        exchange = self._gang.exchange(change, self._placement, number, is_taken_up=is_taken_up)
        if exchange is None:
            self._choose()
            return
        self._exchange, self._exchanging = None, exchange
        self._go("exchanging", Until(lambda: self._exchange is not None))

    def _did_exchange(self) -> None:
        result, ordered = self._exchange, self._exchanging
        assert ordered is not None
        if isinstance(result, ExchangeFailed):
            error, number = result.error, (*ordered.new, *ordered.old)[0].number
            raise WorkerGoneError(number, str(error), error.system, on_any_system=error.on_any_system)
        assert result is not None
        self._gang.exchanged(ordered.new, result.hosts)
        created = [worker.number for worker in ordered.new]
        self._go("attaching", Answers(created, (Attached,), self._now_s, ANSWER_TIMEOUT_S))

    def _choose(self) -> None:
        """Have the checkpoint chosen that the attempt resumes from."""
        self._gang.check_usable()
        self._number += 1
        choice = self._resuming.already(self._decision, agent_knows=self._gang.knows_checkpoints)
        if choice is not None:
            self._go("choosing", Until(lambda: True))
        else:
            self._gang.choose(self._token, **self._resuming.criteria(self._decision))
            self._go("choosing", Answers([0], (Chosen,), self._now_s, CHOOSE_TIMEOUT_S))
        self._choice = choice

    def _chose(self) -> None:
        """Start the attempt."""
        choice, chosen = self._choice, self._gang.answer(0, Chosen)
        if choice is None:
            assert isinstance(chosen, Chosen)
            choice = Choice.of(chosen)
        launch = self._launch = self._beginning.launch(
            self._number, self._decision, self._placement, choice, self._gang
        )
        self._set_out(self._number, self._placement, launch.resume_path)
        self._saves.begin_attempt()
        note = self._beginning.line(launch, self._token).told()
        orders = start_orders(self._plan, launch, note)
        self._gang.start(orders, self._token)
        self._go("starting", Answers(orders, (Started, StartFailed), self._now_s, start_timeout_s(orders)))

    def _set_out(self, number: int, placement: tuple[str, ...], resume_path: str | None) -> None:
        """Listen to an attempt from now on."""
        self._placement = placement
        self._upkeep.trust(placement)
        attempt = self._listener.attempt = self._beginning.attempt(number, placement, resume_path)
        self._hangs.begin(attempt)

    def _started(self) -> None:
        launch = self._launch
        assert launch is not None
        self._last_started = self._number
        self._journal.append(self._beginning.line(launch, self._token), t=self._clock.now())
        tell(
            AttemptStarted(
                phase=self._plan.phase,
                attempt=self._number,
                ranks=len(self._running.ranks),
                placement=launch.placement,
                resume_step=launch.resume_step,
            )
        )
        self._run()

    # -- what keeps a decision from being carried out ---------------------------------------------

    def _meet(self, obstacle: Obstacle) -> None:
        """See to what keeps the decision from being carried out; ahead of its time it is only remembered."""
        if self._is_ahead:
            self._met_ahead, self._listener.attempt = obstacle, None
            self._go("idle", None)
            return
        self._obstacle = obstacle
        if isinstance(obstacle, Unfit):
            self._judge_obstacle(obstacle)
        else:
            self._clear()

    def _clear(self) -> None:
        """End what may run, before anything is decided about it."""
        self._gang.stop(self._token, 0.0, complete=False)
        self._go("clearing", AllStopped(self._gang.reached, self._now_s, 0.0, ANSWER_TIMEOUT_S))

    def _cleared(self) -> None:
        self._resuming.deaths += self._gang.halt().deaths
        self._listener.attempt = None
        obstacle, self._obstacle = self._obstacle, None
        if obstacle is None:
            self._go("idle", None)
        elif self._wants_stop:
            self._end()
        else:
            self._judge_obstacle(obstacle)

    def _judge_obstacle(self, obstacle: Obstacle) -> None:
        """Have it judged; go on with what is decided, or give up."""
        incident = self._judging.incident_of(obstacle, self._decision, self._last_started)
        decision = self._judging.judge(incident, self._number)
        if decision.action in RESTARTS:
            self._enact(decision)
        else:
            self._give_up(AttemptFailedError(incident, decision))

    # -- an attempt that runs -----------------------------------------------------------------------

    def _run(self) -> None:
        self._since_t = self._clock.now()
        self._watch_on()

    def _watch_on(self) -> None:
        """Wait until the attempt is over, something is reported, or a warning is due."""
        attempt = self._running
        due_s = self._unsaved.due_in_s(self._since_t, has_saved=bool(self._saves.verified))

        def is_something_new() -> bool:
            return attempt.over or bool(self._reports) or self._hangs.found is not None

        self._go("running", Until(is_something_new, None if due_s is None else self._now_s + due_s))

    def _look(self) -> None:
        """See to what is new about the attempt."""
        attempt = self._running
        self._unsaved.look(attempt.number, self._since_t, has_saved=bool(self._saves.verified))
        self._take_reports(attempt)
        if attempt.over:
            self._end()
        elif self._hangs.found is not None:
            self._look_into(self._hangs.found)
        else:
            self._watch_on()

    def _take_reports(self, attempt: Attempt) -> None:
        while self._reports and attempt.report is None:
            self._see_to(self._reports.pop(), attempt)

    def _see_to(self, report: Incident, attempt: Attempt) -> None:
        """End the attempt because of a report, or record what is decided about it while the attempt goes on."""
        if report.attempt is not None and report.attempt < attempt.number:
            return  # of a worker that has been made anew since
        if not is_report(report, self._plan.policy, self._placement):
            attempt.report = None if attempt.is_complete else report  # what is done is done
        elif self._upkeep.can_heal(report):
            self._upkeep.heal(report, lambda ok: self._reports.put_back(replace(report, healed=ok)))
        else:
            report = replace(report, t=self._clock.now(), attempt=self._number)
            self._judging.judge(report, self._number)

    def sample_every(self, period_s: float) -> None:
        """Have the ranks sampled that often."""
        self._gang.sample_every(self._token, period_s)

    # -- suspensions ------------------------------------------------------------------------------

    def _look_into(self, hang: Hang) -> None:
        """Find out where ranks are that hang; a policy that only looks on touches nothing."""
        self._hang = hang
        if self._plan.suspension.response == "shadow":
            self._hangs.record(hang, None, None)
            tell(Notice(text=f"{self._plan.phase}: would count as suspended: {hang.text}"))
            self._watch_on()
            return
        asked = self._gang.sampling
        self._gang.diagnose(self._token, 0.8 * TIMEOUT_S)
        self._go("diagnosing", Diagnoses(asked, self._now_s, TIMEOUT_S))

    def _diagnosed(self) -> None:
        """End the attempt because its ranks hang, or record that and let it go on."""
        attempt, hang = self._running, self._hang
        assert hang is not None
        diagnosis = diagnosis_of(self._gang.diagnosed, attempt)
        hang = with_blame(hang, odd_rank(diagnosis.stacks, hang.ranks), attempt)
        where = diagnosis.where
        name = write(self._plan.directory, self._hangs.next_number, hang, diagnosis, attempt)
        self._hangs.record(hang, where, name)
        incident = incident_of(hang, attempt, self._clock.now(), where)
        if self._plan.suspension.response == "report":
            self._judging.judge(incident, self._number)
        elif (
            not attempt.is_complete
        ):  # all ranks may have come to their end while it was looked where they are
            attempt.suspension = incident
            attempt.hung_since_t = incident.t - max(sign.lasted_s for sign in hang.signs)
        self._watch_on()

    # -- ending -----------------------------------------------------------------------------------

    def _end(self) -> None:
        """End whatever still runs; before a planned stop ranks are asked to save, if they can."""
        self._stop.record()
        attempt, on_demand = self._attempt, self._plan.on_demand
        if attempt is None or on_demand is None or not self._can_save(attempt):
            self._stop_ranks()
            return
        asked_s = self._clock.epoch() - FILE_CLOCK_S  # one that was written before may be reported only now
        was_wanted = self._stop.wanted is not None
        self._gang.ask_checkpoint(self._token, signal_number(on_demand))
        grace_s = on_demand.grace_s
        tell(Notice(text=f"{self._plan.phase}: waits up to {grace_s:g} s for a checkpoint before the stop"))

        def is_enough() -> bool:
            is_cancelled = self._stop.wanted is not None and not was_wanted
            return is_cancelled or self._saves.newest_s > asked_s or not attempt.is_running

        self._go("saving", Until(is_enough, self._now_s + grace_s))

    def _can_save(self, attempt: Attempt) -> bool:
        can_still_save = attempt.report is not None and attempt.report.kind != "system_lost"
        return attempt.is_running and (can_still_save or self._stop.wants_checkpoint)

    def _stop_ranks(self) -> None:
        attempt = self._attempt
        is_complete = attempt is not None and attempt.is_complete
        if attempt is not None:
            attempt.ending = True
        self._ended = Ended(attempt, self._clock.now())
        grace_s = self._grace_s()
        self._gang.stop(self._token, grace_s, complete=is_complete)
        self._go("stopping", AllStopped(self._gang.reached, self._now_s, grace_s, ANSWER_TIMEOUT_S))

    def _grace_s(self) -> float:
        """Return how long ranks have between SIGTERM and SIGKILL; none where one of them has failed."""
        if self._stop.wanted is not None:
            return self._plan.stop_grace_s
        is_suspended = self._attempt is not None and self._attempt.suspension is not None
        return self._plan.suspension.grace_s if is_suspended else 0.0

    def _stopped(self) -> None:
        ended, halt = self._ended, self._gang.halt()
        assert ended is not None
        self._resuming.looked(halt.passed_over)
        ended.deaths, ended.reaped_t = halt.deaths, round(self._clock.now(), 6)
        self._hangs.end()
        attempt = ended.attempt
        if attempt is not None:
            self._take_reports(attempt)
            fault = attempt.report
            if fault is not None and self._stop.wanted is None and self._upkeep.can_heal(fault):
                self._heal(fault)
                return
        self._finish()

    def _heal(self, fault: Incident) -> None:
        """Try to mend the device whose fault has ended the attempt."""
        command = self._upkeep.heal(fault)
        self._healing = fault, command, self._clock.now()
        tell(Notice(text=f"healing device {fault.device} of {fault.system} after {fault.code}"))
        self._go("healing", Until(lambda: command.outcome is not None or self._stop.wanted is not None))

    def _healed(self) -> None:
        assert self._healing is not None
        fault, command, began_t = self._healing
        attempt = self._running
        if command.outcome is not None:
            tell(Notice(text=f"healing device {fault.device} of {fault.system}: {command.outcome.problem}"))
            attempt.report = replace(fault, healed=command.outcome.succeeded)
            attempt.healing_s = self._clock.now() - began_t
        self._finish()

    def _finish(self) -> None:
        """Say what happened, unless the phase is complete."""
        ended = self._ended
        assert ended is not None
        self._listener.attempt = None
        incident = self._ending.incident(ended, self._number, self._stop.wanted or self._ended_by)
        facts = self._ending.facts(ended, self._resuming.deaths)
        if incident.kind not in ("completed", "cancelled"):
            self._give_up(AttemptFailedError(incident, **facts))
            return
        decision = self._judging.judge(incident, self._number, **facts)
        self._give_up(None if decision.action == "complete" else AttemptFailedError(incident, decision))

    def _give_up(self, outcome: AttemptFailedError | None) -> None:
        self.outcome = outcome
        self._listener.attempt = None
        self._go("ended", None)


_NEXT: Mapping[State, Callable[[Lifecycle], None]] = {
    "adopting": Lifecycle._adopted,
    "clearing": Lifecycle._cleared,
    "backing-off": Lifecycle._backed_off,
    "checking": Lifecycle._checked,
    "exchanging": Lifecycle._did_exchange,
    "attaching": Lifecycle._choose,
    "choosing": Lifecycle._chose,
    "starting": Lifecycle._started,
    "running": Lifecycle._look,
    "diagnosing": Lifecycle._diagnosed,
    "saving": Lifecycle._stop_ranks,
    "stopping": Lifecycle._stopped,
    "healing": Lifecycle._healed,
}
"""What is done when the wait of a state is over."""


def signal_number(on_demand: OnDemand) -> int | None:
    """Return the signal by which ranks are asked for a checkpoint; None: none is sent."""
    return None if on_demand.signal is None else int(signal.Signals[on_demand.signal])


def _unheard(agents: Mapping[int, AgentStanding]) -> list[tuple[int, Event]]:
    """Return what nobody heard of all agents; exits last, in their order."""
    told = [(worker, event) for worker, agent in agents.items() for event in unheard(agent)]
    return sorted(told, key=lambda each: getattr(each[1], "t_ns", 0))
