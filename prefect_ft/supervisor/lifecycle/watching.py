"""Watches an attempt whose ranks run: reports, hangs, missing checkpoints."""

from __future__ import annotations

from dataclasses import replace

from prefect_ft.decide import is_report
from prefect_ft.decide.hang import Hang, odd_rank
from prefect_ft.model import Incident
from prefect_ft.observe import Notice, tell
from prefect_ft.supervisor.asking import Diagnoses, Until
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.cause_wait import CauseWait
from prefect_ft.supervisor.diagnosis import TIMEOUT_S, diagnosis_of, write
from prefect_ft.supervisor.hangs import incident_of, with_blame
from prefect_ft.supervisor.lifecycle.context import Context
from prefect_ft.supervisor.lifecycle.step import Go, Halt, Step
from prefect_ft.supervisor.unsaved import Unsaved


class Watching:
    """The states `running` and `diagnosing`."""

    def __init__(self, context: Context, unsaved: Unsaved) -> None:
        self._context, self._unsaved = context, unsaved
        self._since_t = 0.0
        """Since when the attempt has been watched."""
        self._hang: Hang | None = None
        """The verdict that is being diagnosed."""
        self._cause_wait: CauseWait | None = None
        """The wait for the cause once ranks have failed; None: none has."""

    def begin(self) -> Step:
        """Watch the attempt from now on."""
        self._since_t = self._context.clock.now()
        return self._watch_on()

    def _watch_on(self) -> Step:
        """Wait until the attempt is over, a report arrives, or a warning is due."""
        self._cause_wait = None
        ctx, attempt = self._context, self._context.running
        due_s = self._unsaved.due_in_s(self._since_t, has_saved=bool(ctx.saves.verified))

        def is_something_new() -> bool:
            return attempt.over or bool(ctx.reports) or ctx.hangs.found is not None

        return Go("running", Until(is_something_new, None if due_s is None else ctx.now_s + due_s))

    def look(self) -> Step:
        """Handle what has changed about the attempt."""
        ctx, attempt = self._context, self._context.running
        self._unsaved.look(attempt.number, self._since_t, has_saved=bool(ctx.saves.verified))
        self.take_reports(attempt)
        if attempt.over:
            return self._await_cause(attempt)
        if ctx.hangs.found is not None:
            return self._diagnose(ctx.hangs.found)
        return self._watch_on()

    def _await_cause(self, attempt: Attempt) -> Step:
        """End the attempt, unless a rank may be about to report the cause."""
        ctx = self._context
        wait = self._cause_wait = self._cause_wait or CauseWait(attempt, ctx.now_s)
        if not wait.goes_on(ctx.now_s):
            return Halt()
        return Go("running", Until(lambda: bool(ctx.reports) or not wait.goes_on(ctx.now_s), wait.due_s))

    def take_reports(self, attempt: Attempt) -> None:
        """Take reports of faults until one of them ends the attempt, or there are no more."""
        while self._context.reports and attempt.report is None:
            self._take(self._context.reports.pop(), attempt)

    def _take(self, report: Incident, attempt: Attempt) -> None:
        """End the attempt because of a report, or record the decision about it while the attempt keeps running."""
        ctx = self._context
        if report.attempt is not None and report.attempt < attempt.number:
            return  # of a worker that has been made anew since
        if not is_report(report, ctx.plan.policy, ctx.placement):
            attempt.report = None if attempt.is_complete else report  # what is complete stays complete
        elif ctx.upkeep.can_heal(report):
            ctx.upkeep.heal(report, lambda ok: ctx.reports.put_back(replace(report, healed=ok)))
        else:
            ctx.judging.judge(replace(report, t=ctx.clock.now(), attempt=ctx.number), ctx.number)

    # -- suspensions ------------------------------------------------------------------------------

    def _diagnose(self, hang: Hang) -> Step:
        """Diagnose where hanging ranks are; a policy in shadow mode touches nothing."""
        ctx = self._context
        self._hang = hang
        if ctx.plan.suspension.response == "shadow":
            ctx.hangs.record(hang, None, None)
            tell(Notice(text=f"{ctx.plan.phase}: would count as suspended: {hang.text}"))
            return self._watch_on()
        asked = ctx.gang.sampling
        ctx.gang.diagnose(ctx.token, 0.8 * TIMEOUT_S)
        return Go("diagnosing", Diagnoses(asked, ctx.now_s, TIMEOUT_S))

    def diagnosed(self) -> Step:
        """End the attempt because its ranks hang, or record that and let it run."""
        ctx, attempt, hang = self._context, self._context.running, self._hang
        assert hang is not None
        diagnosis = diagnosis_of(ctx.gang.diagnosed, attempt)
        hang = with_blame(hang, odd_rank(diagnosis.stacks, hang.ranks), attempt)
        where = diagnosis.where
        name = write(ctx.plan.directory, ctx.hangs.next_number, hang, diagnosis, attempt)
        ctx.hangs.record(hang, where, name)
        incident = incident_of(hang, attempt, ctx.clock.now(), where)
        if ctx.plan.suspension.response == "report":
            ctx.judging.judge(incident, ctx.number)
        elif not attempt.is_complete:  # ranks may have completed during the diagnosis
            attempt.suspension = incident
            attempt.hung_since_t = incident.t - max(sign.lasted_s for sign in hang.signs)
        return self._watch_on()
