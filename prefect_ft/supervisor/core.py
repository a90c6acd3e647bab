"""The supervisor: carries out the last decision, starts an attempt, and watches it until it ends.

It decides nothing about failures: `judge` does. What ends an attempt leaves as AttemptFailedError, for
the retry handler.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from prefect_ft.backends.base import OUT_OF_MEMORY, USED_UP, Backend
from prefect_ft.clock import PhaseClock, epoch_now
from prefect_ft.config import OnDemand
from prefect_ft.decide import initial_placement, is_report, set_aside, skip_eval_at, start_counts
from prefect_ft.decide.hang import Hang, odd_rank
from prefect_ft.errors import BackendError
from prefect_ft.formats import written_by
from prefect_ft.journal.judge import Gate, judge
from prefect_ft.journal.lines import Journal
from prefect_ft.journal.records import AttemptLine, ComebackLine, EarlierSavesLine, IncidentLine
from prefect_ft.model import RESTARTS, Decision, Evidence, Incident
from prefect_ft.observe import AttemptStarted, Decided, Notice, tell
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.calls import Calls
from prefect_ft.supervisor.comeback import Standing, has_run, standing, untold
from prefect_ft.supervisor.diagnosis import TIMEOUT_S, diagnosis_of, write
from prefect_ft.supervisor.enact import change_for, failure_kind, first_gang
from prefect_ft.supervisor.failures import AttemptFailedError, UnfitSystemsError
from prefect_ft.supervisor.gang import AgentGang, StopWantedError, WorkerGoneError
from prefect_ft.supervisor.hangs import Hangs, incident_of, with_blame
from prefect_ft.supervisor.launch import Launch, PhasePlan, SavesPlan, ranks_by_worker, start_orders
from prefect_ft.supervisor.link import Event
from prefect_ft.supervisor.listening import Listener
from prefect_ft.supervisor.masking import masking
from prefect_ft.supervisor.reports import Reports
from prefect_ft.supervisor.runlog import RunLog
from prefect_ft.supervisor.saves import Saves
from prefect_ft.supervisor.stopping import StopRequest
from prefect_ft.supervisor.unsaved import Unsaved
from prefect_ft.supervisor.upkeep import Upkeep

MAX_PASSED_OVER = 5
"""Checkpoints that could not be verified and are named at the start of an attempt."""

PREFECT_WAITS_S = 0.1
"""How long Prefect is kept from entering the task again after a restart in place: that takes processors from ranks."""

NO_STEP = -1
"""The limit by which an agent chooses no checkpoint, and learns what is known of them all the same."""

LOOK_LASTS_S = 0.5
"""How long a look at the checkpoints is as good as another one; a person may be asked about a restart for hours."""

FILE_CLOCK_S = 0.02
"""How far the time that a file system gives a file may lie behind the clock: a tick or two."""


class Supervisor:
    """Runs the attempts of one phase, one at each call of `attempt`; `close` ends whatever is left."""

    def __init__(
        self,
        plan: PhasePlan,
        backend: Backend,
        *,
        key: str,
        epoch: int,
        journal: Journal,
        clock: PhaseClock,
        log: RunLog,
        stop: StopRequest,
        check: Callable[[], None],
        gate: Gate | None = None,
    ) -> None:
        """`epoch` is the orchestrator's: agents obey the highest that they have seen.

        `check` raises LeaseLostError once the run is another orchestrator's. `gate` is asked about decisions.
        """
        self.plan, self.journal, self.clock = plan, journal, clock
        self._backend = backend
        self._stop, self._gate = stop, gate
        self._epoch = epoch
        self._calls = Calls()
        self._reports = Reports(plan.sources, plan.policy.systems, journal, clock)
        self._upkeep = Upkeep(plan.upkeep, lambda: self._calls.soon(_nothing))
        self._gang = AgentGang(
            backend,
            run_id=plan.run_id,
            phase_index=plan.phase_index,
            key=key,
            epoch=epoch,
            stop=stop,
            calls=self._calls,
            listener=self._listen,
            mask=masking(plan.secret_env.values()),
            check=check,
        )
        self._hangs = Hangs(plan.suspension, journal, clock, self._sample_every)
        self._saves = Saves()
        self._log = log
        self._unsaved = Unsaved(plan.phase, plan.saves if plan.policy.autorestart else None, journal, clock)
        if plan.saves is not None and plan.saves.since_s is not None:
            self._saves.fence(0.0, plan.saves.since_s)
        self._listener = Listener(
            plan.phase,
            log=log,
            saves=self._saves,
            unsaved=self._unsaved,
            reports=self._reports,
            hangs=self._hangs,
            journal=journal,
            clock=clock,
            system_of=self._gang.system_of,
            evidence=lambda worker: self._gang.evidence(worker, is_gone=True),
        )
        self._early: list[tuple[int, Event]] = []
        """What agents told before it was known what attempt it belongs to."""
        self._is_rejoining = False
        self._takes_up = False
        """Whether an earlier life may have begun to carry out the last decision."""
        self._found_deaths: list[float] = []
        """When writers died while nobody watched; seconds since the epoch."""
        self._placement: tuple[str, ...] = ()
        """Where the workers of the last attempt are."""
        self._number = 0
        self._begun_t = 0.0
        """When it was begun to carry out the last decision."""
        self._failure: Exception | None = None
        """What went wrong when the last decision was carried out ahead."""
        self._last_started: int | None = None
        self._last_look: tuple[float, Mapping[str, str]] | None = None
        """When the last attempt's checkpoints had been looked at, and what was passed over; until that may be old."""

    @property
    def _attempt(self) -> Attempt | None:
        """The attempt that runs, or has just ended: what agents tell is about it."""
        return self._listener.attempt

    @_attempt.setter
    def _attempt(self, attempt: Attempt | None) -> None:
        self._listener.attempt = attempt

    def rejoin(self, *, by_hand: bool) -> None:
        """Take up what an earlier life of the orchestrator left: workers, an attempt that runs or has ended.

        Before the first `attempt`, which goes on with it. `by_hand`: a person asked for it.
        """
        aside = set_aside(self.plan.policy, self.journal.history())
        self._saves.recall(self.journal.lines, aside)
        silent_s = self.clock.now() - self.journal.last_t
        self._is_rejoining = True
        agents = self._gang.adopt()
        self._is_rejoining = False
        found = standing(self.journal.lines, agents, self.plan.phase_index, self.plan.ranks_per_worker)
        self._number = found.attempt
        self._last_started = found.attempt or None
        self._found_deaths = [death for agent in agents.values() for death in agent["deaths"]]
        if found.note is not None:
            self._saves.begin_attempt()
            self._saves.set_aside(aside)
        self._record_comeback(found, agents, silent_s, by_hand=by_hand)
        if found.watched is not None:
            self._attempt = self._new_attempt(found.attempt, found.watched, found.resume_path)
            self._hangs.begin(self._attempt)
        self._reports.recall()
        for worker, event in [*_untold(agents), *self._early]:
            self._listener.hear(worker, event)
        self._early.clear()
        if self._attempt is None:
            self._takes_up = True
            self._found_deaths += self._gang.stop(self._token, 0).deaths
        else:
            self._watch(self._attempt, found)

    def attempt(self) -> None:
        """Run the next attempt; returns when the phase is complete, raises AttemptFailedError otherwise."""
        self._reports.open(self._calls)
        with suppress(StopWantedError):
            self._run(self._attempt or self._begin())
        self._end()

    def begin(self, decision: Decision) -> None:
        """Carry the last decision out ahead of `attempt`, which goes on with it, if that takes no time.

        So ranks that start again in place do not wait until the task is entered again, nor do they share
        processors with that while they come up. What goes wrong is seen to by `attempt`.
        """
        if decision.action != "restart_in_place" or decision.delay_s:
            return
        self._note_beginning()
        try:
            attempt = self._enact(decision)
            self._gang.serve(lambda: attempt.over, PREFECT_WAITS_S, heeds_stop=False)
        except Exception as exc:
            self._failure, self._attempt = exc, None

    def close(self) -> None:
        """End the workers and everything that runs in them. Idempotent."""
        self._hear_no_more()
        self._gang.close()

    def hang_up(self) -> None:
        """Leave the workers and what runs in them to whoever comes next."""
        self._hear_no_more()
        self._gang.hang_up()

    def _hear_no_more(self) -> None:
        self._reports.close()
        self._upkeep.close()
        self._calls.close()

    # -- coming back ------------------------------------------------------------------------------

    def _watch(self, attempt: Attempt, found: Standing) -> None:
        """Go on with an attempt as if it had been watched all the time."""
        for worker in found.missing:
            answers = self._backend.answers((found.watched or ())[worker])
            evidence = self._gang.evidence(worker, is_gone=True) if worker in self._gang.numbers else None
            attempt.take(worker, {"ev": "lost", "system_answers": answers, "evidence": evidence})

    def _record_comeback(
        self, found: Standing, agents: Mapping[int, Event], silent_s: float, *, by_hand: bool
    ) -> None:
        reached = self._gang.reached
        line = ComebackLine(
            epoch=self._epoch,
            by_hand=by_hand,
            silent_s=round(silent_s, 3),
            attempt=found.attempt or None,
            goes_on=found.watched is not None,
            adopted=tuple(reached),
            left=tuple(worker for worker in sorted(agents) if worker not in reached),
            **written_by("journal"),
        )
        self.journal.append(line, t=self.clock.now())
        if found.note is not None:
            self.journal.append(found.note, t=self.clock.now())
        what = f"attempt {found.attempt} goes on" if found.watched is not None else "nothing was running"
        workers = f"{len(reached)} worker{'' if len(reached) == 1 else 's'} found"
        tell(Notice(text=f"{self.plan.phase}: back after {silent_s:.1f} s: {what}, {workers}"))

    # -- beginning --------------------------------------------------------------------------------

    def _begin(self) -> Attempt:
        """Carry out the last decision until an attempt runs; a recovery action that fails is judged anew."""
        decision, self._last_look = self._note_beginning(), None
        while True:
            try:
                self._raise_failure()
                return self._enact(decision)
            except WorkerGoneError as gone:
                decision = self._judge_gone(gone, decision)
            except UnfitSystemsError as unfit:
                decision = self._judge_unfit(unfit)

    def _note_beginning(self) -> Decision | None:
        """Take note that the last decision is being carried out, and return it."""
        self._begun_t = round(self.clock.now(), 6)
        history = self.journal.history()
        self._saves.set_aside(set_aside(self.plan.policy, history))
        return history[-1].decision if history else None

    def _raise_failure(self) -> None:
        """Raise what kept the last decision from being carried out ahead."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _enact(self, decision: Decision | None) -> Attempt:
        if decision is None:
            placement = self._first_placement()
            change = first_gang(len(placement))
        else:
            self._gang.serve(lambda: False, timeout_s=decision.delay_s)
            placement = decision.placement
            is_first = self._last_started is None  # then there is nothing yet that could stay
            change = first_gang(len(placement)) if is_first else change_for(decision, self._gang.numbers)
        self._upkeep.suspect(self.journal.history())
        if unfit := self._upkeep.unfit(placement, self._gang.serve):
            raise UnfitSystemsError(unfit)
        self._gang.change(change, placement, decision.n if decision else 0, is_taken_up=self._takes_up)
        self._takes_up = False
        return self._start(decision, placement)

    def _first_placement(self) -> tuple[str, ...]:
        placement = initial_placement(self.plan.policy)
        if placement is None:
            raise BackendError(
                f"phase {self.plan.phase}: too few usable systems for {self.plan.policy.workers} workers"
            )
        return placement

    def _start(self, decision: Decision | None, placement: tuple[str, ...]) -> Attempt:
        self._number += 1
        launch = self._launch(decision, placement)
        attempt = self._attempt = self._new_attempt(self._number, placement, launch.resume_path)
        self._saves.begin_attempt()
        self._hangs.begin(attempt)
        line = self._attempt_line(launch)
        self._gang.start(start_orders(self.plan, launch, line.told()), self._token)
        self._last_started = attempt.number
        self.journal.append(line, t=self.clock.now())
        self._tell_started(launch, attempt)
        return attempt

    def _new_attempt(self, number: int, placement: tuple[str, ...], resume_path: str | None) -> Attempt:
        self._placement = placement
        self._upkeep.trust(placement)
        return Attempt(
            number,
            ranks_by_worker(self.plan, placement),
            self.plan.catalogue,
            resume_path=resume_path,
            has_run_before=has_run(self.journal.lines),
        )

    def _launch(self, decision: Decision | None, placement: tuple[str, ...]) -> Launch:
        history = self.journal.history()
        chosen = self._choose(decision) if decision is not None else self._choose_first()
        passed_over = dict(list(chosen["why_not"].items())[:MAX_PASSED_OVER])
        for name, why in passed_over.items():
            tell(Notice(text=f"{self.plan.phase}: not resumed from {name}: {why}"))
        return Launch(
            attempt=self._number,
            restarts=sum(1 for entry in history if entry.decision and entry.decision.action in RESTARTS),
            decision=decision,
            placement=placement,
            start_counts=start_counts(self.plan.policy, history, before_first=self._decisions_before_first()),
            master=self._gang.master,
            has_store=self._gang.has_store,
            in_process_port=self._gang.in_process_port,
            in_process_key=self._gang.in_process_key,
            resume_step=chosen["step"],
            resume_path=chosen["path"],
            why=self._why_elsewhere(decision, chosen),
            passed_over=passed_over,
            skip_eval_at_step=skip_eval_at(self.plan.policy, history),
        )

    def _why_elsewhere(self, decision: Decision | None, chosen: Event) -> str | None:
        """Say why the attempt does not start from the step that was decided; None: it does, or none was."""
        if (
            decision is None
            or not self.plan.has_checkpoints
            or decision.resume_step in (None, chosen["step"])
        ):
            return None
        why = self._saves.why_not(decision.resume_step, chosen["why_not"])
        started = "from scratch" if chosen["step"] is None else f"from step {chosen['step']}"
        tell(Notice(text=f"{self.plan.phase}: starts {started}, not from step {decision.resume_step}: {why}"))
        return why

    def _decisions_before_first(self) -> int:
        """Count the decisions that were made before the first attempt, which may be the one to come."""
        starts = (line.decisions or 0 for line in self.journal.lines if isinstance(line, AttemptLine))
        return next(starts, len(self.journal.history()))

    def _choose_first(self) -> Event:
        """Choose what the phase begins with, and say whose that is."""
        chosen, saves = self._choose(None), self.plan.saves
        if saves is None:
            return chosen
        if (
            saves.since_s is not None
        ):  # the look has shown what counts for nothing, which the agent does not know
            own = self._saves.newest
            chosen = {"step": None, "path": None, "why_not": {}}
            if own is not None:
                chosen |= {"step": own[0], "path": own[1]}
        began_s = saves.run_began_s
        if began_s is not None and (earlier := self._saves.earlier(began_s)):
            self._tell_earlier(saves, earlier, chosen["step"])
        return chosen

    def _tell_earlier(self, saves: SavesPlan, earlier: Sequence[int], begins_with: int | None) -> None:
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
        self.journal.append(line, t=self.clock.now())
        self._log.note(self._number, 0, 0, text)
        tell(Notice(text=f"{self.plan.phase}: {text}"))

    def _choose(self, decision: Decision | None) -> Event:
        """Choose the checkpoint to resume from anew: what was whole when it was decided may not be now.

        Unless that was a moment ago, and it is the newest.
        """
        from_scratch = decision is not None and decision.resume_step is None
        if not self.plan.has_checkpoints or (from_scratch and self._gang.knows_checkpoints):
            return {"step": None, "path": None, "why_not": {}}
        limit = decision.resume_step if decision else None
        return self._chosen_already(decision) or self._gang.choose(
            self._token,
            limit=NO_STEP if from_scratch or (decision is None and self._begins_without) else limit,
            avoid=self._saves.avoided,
            deaths=self._deaths(),
            unreadable=self._saves.unreadable,
            verified=self._saves.marks,
        )

    @property
    def _begins_without(self) -> bool:
        """Whether the phase leaves alone what was there before it."""
        return self.plan.saves is not None and self.plan.saves.since_s is not None

    def _chosen_already(self, decision: Decision | None) -> Event | None:
        """Return the newest checkpoint if it is the one that was decided for, and was whole a moment ago.

        Not where copies are kept: choosing puts them back, too.
        """
        looked, self._last_look = self._last_look, None
        if self.plan.saves is not None and self.plan.saves.keeps_copies:
            return None
        newest = self._saves.newest
        if decision is None or looked is None or newest is None or newest[0] != decision.resume_step:
            return None
        looked_t, why_not = looked
        is_fresh = self.clock.now() - looked_t < LOOK_LASTS_S
        return {"step": newest[0], "path": newest[1], "why_not": why_not} if is_fresh else None

    def _deaths(self) -> list[float]:
        """When writers of earlier attempts died, not having come to their own end; seconds since the epoch."""
        ends = [line for line in self.journal.lines if isinstance(line, IncidentLine)]
        return sorted({*(death for line in ends for death in line.deaths or ()), *self._found_deaths})

    def _attempt_line(self, launch: Launch) -> AttemptLine:
        """Return what the journal says of an attempt; agents keep it for a comeback."""
        return AttemptLine(
            attempt=launch.attempt,
            token=self._token,
            placement=launch.placement,
            start_counts=launch.start_counts,
            resume_step=launch.resume_step,
            resume_path=launch.resume_path,
            decided_step=launch.decision.resume_step if launch.decision else None,
            started_from=launch.resume_step,
            why=launch.why,
            passed_over=launch.passed_over,
            decisions=len(self.journal.history()),
            begun_t=self._begun_t,
        )

    def _tell_started(self, launch: Launch, attempt: Attempt) -> None:
        tell(
            AttemptStarted(
                phase=self.plan.phase,
                attempt=attempt.number,
                ranks=len(attempt.ranks),
                placement=launch.placement,
                resume_step=launch.resume_step,
            )
        )

    @property
    def _token(self) -> tuple[int, int, int]:
        return self._epoch, self.plan.phase_index, self._number

    def _listen(self, worker: int, event: Event) -> None:
        """Take one event of an agent; what comes before it is known where the phase stands is put off."""
        if self._is_rejoining:
            self._early.append((worker, event))
        else:
            self._listener.hear(worker, event)

    # -- reports of faults ------------------------------------------------------------------------

    def _run(self, attempt: Attempt) -> None:
        """Wait until the attempt is over, and see to what is reported meanwhile."""
        self._take_reports(attempt)
        since_t = self.clock.now()
        while not attempt.over:
            has_saved = bool(self._saves.verified)
            self._gang.serve(
                lambda: attempt.over or bool(self._reports) or self._hangs.found is not None,
                self._unsaved.due_in_s(since_t, has_saved=has_saved),
            )
            self._unsaved.look(attempt.number, since_t, has_saved=bool(self._saves.verified))
            self._take_reports(attempt)
            if self._hangs.found is not None and not attempt.over:
                self._see_to_hang(self._hangs.found, attempt)

    def _take_reports(self, attempt: Attempt) -> None:
        while self._reports and attempt.report is None:
            self._see_to(self._reports.pop(), attempt)

    def _see_to(self, report: Incident, attempt: Attempt) -> None:
        """End the attempt because of a report, or record what is decided about it while the attempt goes on."""
        if report.attempt is not None and report.attempt < attempt.number:
            return  # of a worker that has been made anew since
        if not is_report(report, self.plan.policy, self._placement):
            attempt.report = None if attempt.is_complete else report  # what is done is done
        elif self._upkeep.can_heal(report):
            self._upkeep.heal(report, lambda ok: self._reports.put_back(replace(report, healed=ok)))
        else:
            self._judge(replace(report, t=self.clock.now(), attempt=self._number))

    # -- suspensions ------------------------------------------------------------------------------

    def _sample_every(self, period_s: float) -> None:
        self._gang.sample_every(self._token, period_s)

    def _see_to_hang(self, hang: Hang, attempt: Attempt) -> None:
        """End the attempt because its ranks hang, or record that and let it go on."""
        suspension = self.plan.suspension
        where = name = None
        if suspension.response != "shadow":  # who only looks on touches nothing
            diagnosis = diagnosis_of(self._gang.diagnose(self._token, TIMEOUT_S))
            hang = with_blame(hang, odd_rank(diagnosis.stacks, hang.ranks), attempt)
            number = self._hangs.next_number
            where, name = diagnosis.where, write(self.plan.directory, number, hang, diagnosis, attempt)
        self._hangs.record(hang, where, name)
        incident = incident_of(hang, attempt, self.clock.now(), where)
        match suspension.response:
            case "restart" if attempt.is_complete:
                pass  # all ranks came to their end while it was looked where they are
            case "restart":
                attempt.suspension = incident
                attempt.hung_since_t = incident.t - max(sign.lasted_s for sign in hang.signs)
            case "report":
                self._judge(incident)
            case "shadow":
                tell(Notice(text=f"{self.plan.phase}: would count as suspended: {hang.text}"))

    # -- ending and mending -----------------------------------------------------------------------

    def _heal(self, attempt: Attempt) -> None:
        """Try to mend the device whose fault has ended the attempt."""
        fault = attempt.report
        if fault is None or self._stop.wanted or not self._upkeep.can_heal(fault):
            return
        began_s = self.clock.now()
        command = self._upkeep.heal(fault)
        tell(Notice(text=f"healing device {fault.device} of {fault.system} after {fault.code}"))
        with suppress(StopWantedError):
            self._gang.serve(lambda: command.outcome is not None)
        if command.outcome is not None:
            tell(Notice(text=f"healing device {fault.device} of {fault.system}: {command.outcome.problem}"))
            attempt.report = replace(fault, healed=command.outcome.succeeded)
            attempt.healing_s = self.clock.now() - began_s

    def _save_first(self, attempt: Attempt) -> None:
        """Before a planned stop: have the ranks save, if they can, and wait until what they saved is whole."""
        on_demand = self.plan.on_demand
        can_still_save = attempt.report is not None and attempt.report.kind != "system_lost"
        planned = can_still_save or self._stop.wants_checkpoint
        if on_demand is None or not planned or not attempt.is_running:
            return
        asked_s = epoch_now() - FILE_CLOCK_S  # one that was written before may be reported only now
        self._gang.ask_checkpoint(self._token, signal_number(on_demand))
        tell(
            Notice(
                text=f"{self.plan.phase}: waits up to {on_demand.grace_s:g} s for a checkpoint before the stop"
            )
        )
        with suppress(StopWantedError):
            self._gang.serve(
                lambda: self._saves.newest_s > asked_s or not attempt.is_running,
                timeout_s=on_demand.grace_s,
                heeds_stop=self._stop.wanted is None,
            )

    # -- ending -----------------------------------------------------------------------------------

    def _end(self) -> None:
        """End whatever still runs and raise what happened, unless the phase is complete."""
        self._stop.record()
        is_complete = False
        if self._attempt is not None:
            self._save_first(self._attempt)
            is_complete = self._attempt.is_complete
            self._attempt.ending = True
        t = self.clock.now()
        deaths, passed_over = self._gang.stop(self._token, self._grace_s(), complete=is_complete)
        self._last_look = None if passed_over is None else (self.clock.now(), passed_over)
        reaped_t = round(self.clock.now(), 6)
        self._hangs.end()
        if self._attempt is not None:
            self._take_reports(self._attempt)
            self._heal(self._attempt)
        attempt, self._attempt = self._attempt, None
        incident = replace(self._explained(self._incident(attempt, t), attempt), **self._known_saves())
        if attempt is not None:
            incident = replace(incident, started_from=self._started_from())
        facts = {**self._facts(attempt, deaths), "reaped_t": reaped_t}
        if incident.kind not in ("completed", "cancelled"):
            raise AttemptFailedError(incident, **facts)
        decision = self._judge(incident, **facts)
        if decision.action != "complete":
            raise AttemptFailedError(incident, decision)

    def _grace_s(self) -> float:
        """Return how long ranks have between SIGTERM and SIGKILL; none where one of them has failed."""
        if self._stop.wanted:
            return self.plan.stop_grace_s
        is_suspended = self._attempt is not None and self._attempt.suspension is not None
        return self.plan.suspension.grace_s if is_suspended else 0.0

    def _incident(self, attempt: Attempt | None, t: float) -> Incident:
        """Return what happened; who wants the run to stop wants it whatever else happens at the same time."""
        wanted = self._stop.wanted
        if attempt is not None:
            return attempt.incident(t, cancelled_by=wanted)
        assert wanted is not None
        evidence = Evidence(rule="stop-request", text=wanted)
        return Incident(t=t, kind="cancelled", attempt=self._number, evidence=evidence)

    def _explained(self, incident: Incident, attempt: Attempt | None) -> Incident:
        """Return a rank's bare death by SIGKILL the cause that its agent or its worker's infrastructure knows of."""
        is_bare = incident.signal == signal.SIGKILL and incident.failure_class in ("unknown", "crash")
        if not is_bare or incident.worker not in self._gang.numbers:
            return incident
        has_run_out = attempt is not None and attempt.has_run_out(incident.worker)
        evidence = USED_UP if has_run_out else self._gang.evidence(incident.worker, is_gone=False)
        if evidence is None or evidence.rule != OUT_OF_MEMORY:
            return incident
        return replace(incident, failure_class="oom_host", evidence=evidence)

    def _started_from(self) -> int | None:
        """Return the step from which the last attempt started, 0 from scratch; None: there are no checkpoints."""
        if not self.plan.has_checkpoints:
            return None
        line = next(line for line in reversed(self.journal.lines) if isinstance(line, AttemptLine))
        return line.resume_step or 0

    def _known_saves(self) -> dict[str, Any]:
        return self._saves.facts() if self.plan.has_checkpoints else {}

    def _facts(self, attempt: Attempt | None, deaths: list[float]) -> dict[str, Any]:
        """What the journal keeps of an attempt beside its incident."""
        if attempt is None:
            return {}
        ended_t = attempt.hung_since_t
        if ended_t is None and (ended_ns := attempt.ended_ns()) is not None:
            ended_t = self.clock.at(ended_ns)
        return {
            # When the ranks of a lost agent's worker died nobody saw; by now they write no more.
            "deaths": tuple(sorted({*deaths, *self._found_deaths, *([epoch_now()] if attempt.lost else [])})),
            **self._fences(attempt),
            "ended_t": ended_t,
            "first_step": attempt.first_step,
            "last_step": attempt.last_step,
            "healing_s": attempt.healing_s,
        }

    def _fences(self, attempt: Attempt) -> dict[str, Any]:
        """Have what lost ranks write from now on count for nothing; return what the journal says of it."""
        lasts_s = self.plan.lost_ranks_last_s
        if lasts_s is None or all(loss.system_answers for loss in attempt.lost.values()):
            return {}
        fence = round(epoch_now(), 3), round(epoch_now() + lasts_s, 3)
        self._saves.fence(*fence)
        return {"fences": (fence,)}

    def _judge_gone(self, gone: WorkerGoneError, decision: Decision | None) -> Decision:
        """Have a recovery action judged that failed; return the next one to try, or give up."""
        if self._stop.wanted:
            raise StopWantedError
        self._found_deaths += self._gang.stop(self._token, 0).deaths
        self._attempt = None
        created = decision is None or gone.worker in decision.recreate
        tell(Notice(text=f"worker {gone.worker} is not there: {gone.why}"))
        incident = Incident(
            t=self.clock.now(),
            kind=failure_kind(decision.action if decision else None, was_created=created),
            attempt=self._last_started,
            worker=gone.worker,
            system=gone.system,
            blame="none" if gone.on_any_system else None,
            evidence=Evidence(rule="worker-gone", text=gone.why),
            **self._known_saves(),
        )
        judged = self._judge(incident)
        if judged.action not in RESTARTS:
            raise AttemptFailedError(incident, judged)
        return judged

    def _judge_unfit(self, unfit: UnfitSystemsError) -> Decision:
        """Have the loss of systems judged that did not pass their check; return what to try next, or give up."""
        for system, why in unfit.systems.items():
            tell(Notice(text=f"{system} did not pass its check: {why}"))
        text = "; ".join(f"{system}: check failed: {why}" for system, why in unfit.systems.items())
        incident = Incident(
            t=self.clock.now(),
            kind="system_lost",
            attempt=self._last_started,
            systems=tuple(unfit.systems),
            evidence=Evidence(rule="check-failed", text=text),
            **self._known_saves(),
        )
        judged = self._judge(incident)
        if judged.action not in RESTARTS:
            raise AttemptFailedError(incident, judged)
        return judged

    def _judge(self, incident: Incident, **facts: Any) -> Decision:
        decision = judge(self.journal, self.plan.policy, incident, self.clock, gate=self._gate, **facts)
        tell(Decided(phase=self.plan.phase, attempt=self._number, incident=incident, decision=decision))
        return decision


def signal_number(on_demand: OnDemand) -> int | None:
    """Return the signal by which ranks are asked for a checkpoint; None: none is sent."""
    return None if on_demand.signal is None else int(signal.Signals[on_demand.signal])


def _nothing() -> None:
    """What is done by a call whose only purpose is that somebody looks again."""


def _untold(agents: Mapping[int, Event]) -> list[tuple[int, Event]]:
    """Return what nobody heard of all agents; exits last, in their order."""
    told = [(worker, event) for worker, agent in agents.items() for event in untold(agent)]
    return sorted(told, key=lambda each: each[1].get("t_ns", 0))
