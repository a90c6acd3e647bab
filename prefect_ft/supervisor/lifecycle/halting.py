"""Ends an attempt: a last checkpoint where possible, the ranks, healing of a faulty device, the verdict."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import NamedTuple

from prefect_ft.config import OnDemand
from prefect_ft.journal.records import HandOverLine
from prefect_ft.model import Incident
from prefect_ft.observe import Notice, tell
from prefect_ft.supervisor.asking import AllStopped, Until, Wait
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.command import Command
from prefect_ft.supervisor.ending import Ended, Ending
from prefect_ft.supervisor.failures import AttemptFailedError, HandedOverError
from prefect_ft.supervisor.lifecycle.context import Context
from prefect_ft.supervisor.lifecycle.step import Finish, Go, Step
from prefect_ft.supervisor.lifecycle.watching import Watching
from prefect_ft.supervisor.remote import ScannedAfter
from prefect_ft.supervisor.times import ANSWER_TIMEOUT_S

FILE_CLOCK_S = 0.02
"""How far a file system's timestamps may lag behind the clock: a tick or two."""


OBJECT_CLOCK_S = 1.0
"""How far those of an object store may: it counts whole seconds."""


class _Healing(NamedTuple):
    """A device that is being healed of a fault since `began_t`."""

    fault: Incident
    command: Command
    began_t: float


class Halting:
    """The states `saving`, `stopping` and `healing`."""

    def __init__(self, context: Context, ending: Ending, watching: Watching) -> None:
        self._context, self._ending, self._watching = context, ending, watching
        self._ended_by: str | None = None
        """Why the supervisor's owner ended the attempt; None: it did not."""
        self._ended: Ended | None = None
        self._healing: _Healing | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the ranks of the attempt have been stopped, or are being."""
        return self._ended is not None

    def forget(self) -> None:
        """Clear the last attempt's end: another attempt begins."""
        self._ended, self._ended_by = None, None

    def because(self, why: str) -> None:
        """Record why the supervisor's owner ends the attempt."""
        self._ended_by = why

    def begin(self) -> Step:
        """End whatever still runs; before a planned stop, ranks are asked to save if they can."""
        ctx = self._context
        ctx.stop.record()
        attempt, on_demand = ctx.attempt, ctx.plan.on_demand
        if attempt is None or on_demand is None or not self._can_save(attempt):
            return self.stop_ranks()
        coarse_s = FILE_CLOCK_S if ctx.remote is None else OBJECT_CLOCK_S
        asked_s = ctx.clock.epoch() - coarse_s  # one that was written before may be reported only now
        was_wanted = ctx.stop.wanted is not None
        ctx.gang.ask_checkpoint(ctx.token, _signal_number(on_demand))
        grace_s = on_demand.grace_s
        tell(Notice(text=f"{ctx.plan.phase}: waits up to {grace_s:g} s for a checkpoint before the stop"))

        def is_enough() -> bool:
            is_cancelled = ctx.stop.wanted is not None and not was_wanted
            return is_cancelled or ctx.saves.newest_s > asked_s or not attempt.is_running

        return Go("saving", Until(is_enough, ctx.now_s + grace_s))

    def _can_save(self, attempt: Attempt) -> bool:
        stop = self._context.stop
        if stop.tenure_is_over and stop.wanted is None:
            return False
        can_still_save = attempt.report is not None and attempt.report.kind != "system_lost"
        is_wanted = stop.wants_checkpoint or stop.hands_over is not None
        return attempt.is_running and (can_still_save or is_wanted)

    def stop_ranks(self) -> Step:
        """Stop the ranks of all workers."""
        ctx = self._context
        attempt = ctx.attempt
        is_complete = attempt is not None and attempt.is_complete
        if attempt is not None:
            attempt.ending = True
        self._ended = Ended(attempt, ctx.clock.now())
        grace_s = self._grace_s(attempt)
        ctx.gang.stop(ctx.token, grace_s, complete=is_complete)
        stopped: Wait = AllStopped(ctx.roster.reached, ctx.now_s, grace_s, ANSWER_TIMEOUT_S)
        if ctx.remote is not None and attempt is not None:
            stopped = ScannedAfter(stopped, lambda: self._last_scan(complete=is_complete), ctx.remote)
        return Go("stopping", stopped)

    def _last_scan(self, *, complete: bool) -> None:
        """Scan the checkpoints at a URL, now that all writers have ended."""
        ctx = self._context
        assert ctx.remote is not None
        ctx.remote.look(ctx.gang.halt().deaths, settled=complete)

    def _grace_s(self, attempt: Attempt | None) -> float:
        """Return how long ranks have between SIGTERM and SIGKILL; none where one of them has failed."""
        plan = self._context.plan
        stop = self._context.stop
        if stop.wanted is not None or stop.hands_over is not None:
            return 0.0 if stop.tenure_is_over else plan.stop_grace_s
        is_suspended = attempt is not None and attempt.suspension is not None
        return plan.suspension.grace_s if is_suspended else 0.0

    def stopped(self) -> Step:
        """Heal the device whose fault ended the attempt, or report the end at once."""
        ctx, ended = self._context, self._ended
        halt = ctx.gang.halt()
        assert ended is not None
        if ctx.remote is None:
            ctx.resuming.scanned(halt.passed_over, is_final=halt.is_alone)
        else:
            ctx.resuming.scanned(ctx.remote.skipped, is_final=True)
        ended.deaths, ended.reaped_t = halt.deaths, round(ctx.clock.now(), 6)
        ctx.hangs.end()
        if ended.attempt is not None:
            self._watching.take_reports(ended.attempt)
            fault = ended.attempt.report
            if fault is not None and ctx.stop.wanted is None and ctx.upkeep.can_heal(fault):
                return self._heal(fault)
        return self._finish()

    def _heal(self, fault: Incident) -> Step:
        ctx = self._context
        command = ctx.upkeep.heal(fault)
        self._healing = _Healing(fault, command, ctx.clock.now())
        tell(Notice(text=f"healing device {fault.device} of {fault.system} after {fault.code}"))
        return Go("healing", Until(lambda: command.outcome is not None or ctx.stop.wanted is not None))

    def healed(self) -> Step:
        """Report the end, and whether the device is healed."""
        ctx, healing = self._context, self._healing
        assert healing is not None
        fault, outcome = healing.fault, healing.command.outcome
        if outcome is not None:
            tell(Notice(text=f"healing device {fault.device} of {fault.system}: {outcome.problem}"))
            ctx.running.report = replace(fault, healed=outcome.succeeded)
            ctx.running.healing_s = ctx.clock.now() - healing.began_t
        return self._finish()

    def _finish(self) -> Step:
        """Report the end, unless the phase is complete."""
        ctx, ended = self._context, self._ended
        assert ended is not None
        ctx.listener.attempt = None
        if ended.attempt is not None and ended.attempt.is_complete and not ended.attempt.lost:
            ctx.saves.trust(since_s=ctx.clock.epoch() - ctx.clock.now() + self._ending.began_t(ended.attempt))
        hand_over = ctx.stop.hands_over
        if hand_over is not None and (ended.attempt is None or not ended.attempt.is_complete):
            return self._hand_over(ended, hand_over)
        incident = self._ending.incident(ended, ctx.number, ctx.stop.wanted or self._ended_by)
        if hand_over is not None and incident.kind != "completed":
            return self._hand_over(ended, hand_over)
        facts = self._ending.facts(ended, ctx.resuming.deaths)
        if incident.kind not in ("completed", "cancelled"):
            return Finish(AttemptFailedError(incident, **facts))
        decision = ctx.judging.judge(incident, ctx.number, **facts)
        return Finish(None if decision.completes else AttemptFailedError(incident, decision))

    def _hand_over(self, ended: Ended, why: str) -> Step:
        """Record the facts about the attempt for the next tenure, where the decision is made."""
        ctx = self._context
        facts = self._ending.facts(ended, ctx.resuming.deaths)
        line = HandOverLine(
            attempt=ctx.number,
            reason=why,
            is_clean=not ctx.stop.tenure_is_taken,
            had_ended=ended.attempt is None,
            step=max(ctx.saves.verified, default=None),
            ended_t=facts.pop("ended_t", None) or ended.t,
            **facts,
        )
        ctx.journal.append(line, t=ctx.clock.now())
        ctx.journal.sync()
        return Finish(HandedOverError(why))


def _signal_number(on_demand: OnDemand) -> int | None:
    """Return the signal that asks ranks for a checkpoint; None: there is none."""
    return None if on_demand.signal is None else int(signal.Signals[on_demand.signal])
