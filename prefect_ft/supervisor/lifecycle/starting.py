"""Carries out a decision until the ranks of the next attempt run."""

from __future__ import annotations

from prefect_ft.decide import initial_placement, set_aside
from prefect_ft.errors import BackendError, TenureEndedError
from prefect_ft.model import Decision
from prefect_ft.observe import AttemptStarted, tell
from prefect_ft.supervisor.asking import Answers, Until
from prefect_ft.supervisor.attempt import Start
from prefect_ft.supervisor.enact import change_for, first_gang
from prefect_ft.supervisor.events import Attached, Chosen, Started, StartFailed
from prefect_ft.supervisor.gang import Exchange, Exchanged, ExchangeFailed, WorkerGoneError
from prefect_ft.supervisor.judging import Unfit
from prefect_ft.supervisor.launch import Launch, start_orders
from prefect_ft.supervisor.lifecycle.context import Context
from prefect_ft.supervisor.lifecycle.step import Go, Halt, Meet, Step, Watch
from prefect_ft.supervisor.resuming import Choice
from prefect_ft.supervisor.times import ANSWER_TIMEOUT_S, CHOOSE_TIMEOUT_S, start_timeout_s
from prefect_ft.supervisor.upkeep import Checks


class Starting:
    """The states `backing-off`, `checking`, `exchanging`, `attaching`, `choosing` and `starting`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.may_have_begun = False
        """Whether an earlier life may have begun to carry out the last decision."""
        self._checks: Checks | None = None
        self._ordered: Exchange | None = None
        self._exchange: Exchanged | ExchangeFailed | None = None
        """What came of the exchange of workers that was ordered last."""
        self._choice: Choice | None = None
        self._launch: Launch | None = None

    def exchanged(self, result: Exchanged | ExchangeFailed) -> None:
        """Take note of what came of the exchange of workers."""
        self._exchange = result

    def note(self) -> None:
        """Take note that the last decision is being carried out from now on."""
        ctx = self._context
        ctx.beginning.note()
        history = ctx.journal.history()
        ctx.saves.set_aside(set_aside(ctx.plan.policy, history))
        ctx.decision = history[-1].decision if history else None

    def enact(self, decision: Decision | None) -> Step:
        """Back off, then check the systems. Raises BackendError where too few of them may be used to begin."""
        ctx = self._context
        ctx.decision = decision
        if decision is not None:
            ctx.placement = decision.placement
            return Go("backing-off", Until(lambda: not decision.delay_s, ctx.now_s + decision.delay_s))
        placement = initial_placement(ctx.plan.policy)
        if placement is None:
            workers = ctx.plan.policy.workers
            raise BackendError(f"phase {ctx.plan.phase}: too few usable systems for {workers} workers")
        ctx.placement = placement
        return Go("backing-off", Until(lambda: True))

    def backed_off(self) -> Step:
        """Check the systems."""
        ctx = self._context
        ctx.upkeep.suspect(ctx.journal.history())
        checks = self._checks = ctx.upkeep.check(ctx.placement)
        return Go("checking", Until(lambda: checks.are_over))

    def checked(self) -> Step:
        """Exchange the workers that the decision replaces, if it does any."""
        ctx = self._context
        assert self._checks is not None
        failed = self._checks.failed
        ctx.upkeep.trust({*ctx.placement} - {*failed})
        if failed:
            return Meet(Unfit(failed))
        decision = ctx.decision
        is_first = decision is None or ctx.last_started is None  # no worker can stay: there are none yet
        change = first_gang(len(ctx.placement))
        if decision is not None and not is_first:
            change = change_for(decision, ctx.gang.numbers)
        number, is_taken_up, self.may_have_begun = decision.n if decision else 0, self.may_have_begun, False
        exchange = ctx.gang.exchange(change, ctx.placement, number, is_taken_up=is_taken_up)
        if exchange is None:
            return self.choose()
        self._exchange, self._ordered = None, exchange
        return Go("exchanging", Until(lambda: self._exchange is not None))

    def has_exchanged(self) -> Step:
        """Wait for the new workers' agents; raises WorkerGoneError."""
        ctx, result, ordered = self._context, self._exchange, self._ordered
        assert ordered is not None
        if isinstance(result, ExchangeFailed) and isinstance(result.error, TenureEndedError):
            ctx.stop.hand_over(str(result.error), is_over=True)
            return Halt()
        if isinstance(result, ExchangeFailed):
            error, number = result.error, (*ordered.new, *ordered.old)[0].number
            raise WorkerGoneError(number, str(error), error.system, on_any_system=error.on_any_system)
        assert result is not None
        ctx.gang.exchanged(ordered.new, result.hosts)
        created = [worker.number for worker in ordered.new]
        return Go("attaching", Answers(created, (Attached,), ctx.now_s, ANSWER_TIMEOUT_S))

    def choose(self) -> Step:
        """Have the checkpoint chosen that the attempt resumes from."""
        ctx = self._context
        ctx.gang.check_usable()
        ctx.number += 1
        self._choice = ctx.resuming.already(ctx.decision, agent_knows=ctx.gang.knows_checkpoints)
        if self._choice is not None:
            return Go("choosing", Until(lambda: True))
        ctx.gang.choose(ctx.token, **ctx.resuming.criteria(ctx.decision))
        return Go("choosing", Answers([0], (Chosen,), ctx.now_s, CHOOSE_TIMEOUT_S))

    def chose(self) -> Step:
        """Start the ranks."""
        ctx = self._context
        choice, chosen = self._choice, ctx.gang.answer(0, Chosen)
        if choice is None:
            assert isinstance(chosen, Chosen)
            choice = Choice.of(chosen)
        launch = self._launch = ctx.beginning.launch(
            ctx.number, ctx.decision, ctx.placement, choice, ctx.gang
        )
        ctx.set_out(ctx.number, ctx.placement, Start(launch.resume_step, launch.resume_path))
        ctx.saves.begin_attempt()
        note = ctx.beginning.line(launch, ctx.token).told()
        orders = start_orders(ctx.plan, launch, note)
        ctx.gang.start(orders, ctx.token)
        return Go("starting", Answers(orders, (Started, StartFailed), ctx.now_s, start_timeout_s(orders)))

    def started(self) -> Step:
        """Record the attempt, and watch it."""
        ctx, launch = self._context, self._launch
        assert launch is not None
        ctx.last_started = ctx.number
        ctx.journal.append(ctx.beginning.line(launch, ctx.token), t=ctx.clock.now())
        tell(
            AttemptStarted(
                phase=ctx.plan.phase,
                attempt=ctx.number,
                ranks=len(ctx.running.ranks),
                placement=launch.placement,
                resume_step=launch.resume_step,
            )
        )
        return Watch()
