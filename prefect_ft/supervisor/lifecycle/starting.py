"""Carries out a decision until the ranks of the next attempt run."""

from __future__ import annotations

from typing import Any

from prefect_ft.amounts import count
from prefect_ft.decide import initial_placement, set_aside
from prefect_ft.errors import BackendError, TenureEndedError
from prefect_ft.model import Decision
from prefect_ft.observe import AttemptStarted, tell
from prefect_ft.supervisor import remote
from prefect_ft.supervisor.asking import Answers, Until
from prefect_ft.supervisor.attempt import Start
from prefect_ft.supervisor.enact import change_for, first_gang
from prefect_ft.supervisor.events import Attached, Chosen, Started, StartFailed
from prefect_ft.supervisor.judging import Unfit
from prefect_ft.supervisor.launch import Launch, start_orders
from prefect_ft.supervisor.lifecycle.context import Context
from prefect_ft.supervisor.lifecycle.step import Go, Halt, Meet, Step, Watch
from prefect_ft.supervisor.parts import Parts
from prefect_ft.supervisor.resuming import Choice
from prefect_ft.supervisor.roster import Exchange, Exchanged, ExchangeFailed, WorkerGoneError
from prefect_ft.supervisor.stopping import HandOver
from prefect_ft.supervisor.times import ANSWER_TIMEOUT_S, CHOOSE_TIMEOUT_S, start_timeout_s
from prefect_ft.supervisor.upkeep import Checks


class Starting:
    """The states `backing-off`, `checking`, `exchanging`, `attaching`, `choosing` and `starting`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.may_have_begun = False
        """Whether an earlier orchestrator may have begun to carry out the last decision."""
        self._checks: Checks | None = None
        self._ordered: Exchange | None = None
        self._exchange: Exchanged | ExchangeFailed | None = None
        """The result of the last exchange of workers."""
        self._choice: Choice | None = None
        self._asked: dict[int, dict[str, Any]] = {}
        """The criteria by which each worker's agent chooses a checkpoint."""
        self._launch: Launch | None = None

    def exchanged(self, result: Exchanged | ExchangeFailed) -> None:
        """Record the result of an exchange of workers."""
        self._exchange = result

    def note(self) -> None:
        """Record that the last decision is being carried out from now on."""
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
            self._place()
            return Go("backing-off", Until(lambda: not decision.delay_s, ctx.now_s + decision.delay_s))
        placement = initial_placement(ctx.plan.policy)
        if placement is None:
            workers = count(ctx.plan.policy.workers, "worker")
            raise BackendError(f"phase {ctx.plan.phase}: too few usable systems for {workers}")
        ctx.placement = placement
        self._place()
        return Go("backing-off", Until(lambda: True))

    def _place(self) -> None:
        if self._context.parts is not None:
            self._context.parts.placement = self._context.placement

    def backed_off(self) -> Step:
        """Check the systems."""
        ctx = self._context
        ctx.upkeep.suspect(ctx.journal.history())
        checks = self._checks = ctx.upkeep.check(ctx.placement)
        return Go("checking", Until(lambda: checks.are_over))

    def checked(self) -> Step:
        """Exchange the workers that the decision replaces, if there are any."""
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
            change = change_for(decision, ctx.roster.numbers)
        number, is_taken_up, self.may_have_begun = decision.n if decision else 0, self.may_have_begun, False
        exchange = ctx.roster.exchange(change, ctx.placement, number, is_taken_up=is_taken_up)
        if exchange is None:
            return self.choose()
        self._exchange, self._ordered = None, exchange
        return Go("exchanging", Until(lambda: self._exchange is not None))

    def has_exchanged(self) -> Step:
        """Wait for the new workers' agents; raises WorkerGoneError."""
        ctx, result, ordered = self._context, self._exchange, self._ordered
        assert ordered is not None
        if isinstance(result, ExchangeFailed) and isinstance(result.error, TenureEndedError):
            ctx.stop.hand_over(str(result.error), HandOver.OVER)
            return Halt()
        if isinstance(result, ExchangeFailed):
            error, number = result.error, (*ordered.new, *ordered.old)[0].number
            raise WorkerGoneError(number, str(error), error.system, on_any_system=error.on_any_system)
        assert result is not None
        ctx.roster.exchanged(ordered.new, result.hosts)
        created = [worker.number for worker in ordered.new]
        return Go("attaching", Answers(created, (Attached,), ctx.now_s, ANSWER_TIMEOUT_S))

    def choose(self) -> Step:
        """Choose the checkpoint that the attempt resumes from."""
        ctx = self._context
        ctx.roster.check_usable()
        ctx.number += 1
        agent_knows = ctx.roster.knows_checkpoints or ctx.remote is not None
        self._choice = ctx.resuming.known_choice(ctx.decision, agent_knows=agent_knows)
        if self._choice is not None:
            return Go("choosing", Until(lambda: True))
        if ctx.remote is not None:
            ctx.remote.choose(ctx.resuming.criteria(ctx.decision))
            return Go("choosing", remote.Chosen(ctx.remote, ctx.now_s))
        lookers = range(len(ctx.placement)) if ctx.parts is not None else (0,)
        criteria = ctx.resuming.criteria(ctx.decision)
        return self._ask({number: {**criteria, **self._known_on(number)} for number in lookers})

    def _known_on(self, worker: int) -> dict[str, Any]:
        ctx = self._context
        return {} if ctx.parts is None else {"verified": ctx.parts.marks(ctx.placement[worker])}

    def _ask(self, criteria: dict[int, dict[str, Any]]) -> Step:
        ctx, self._asked = self._context, criteria
        ctx.gang.choose(ctx.token, criteria)
        return Go("choosing", Answers([*criteria], (Chosen,), ctx.now_s, CHOOSE_TIMEOUT_S))

    def chose(self) -> Step:
        """Start the ranks from the chosen checkpoint."""
        ctx = self._context
        if self._choice is not None:
            return self._start(self._choice)
        if ctx.remote is not None:
            assert ctx.remote.choice is not None
            return self._start(ctx.remote.choice)
        answers = {number: ctx.roster.answer(number, Chosen) for number in self._asked}
        chosen = {number: each for number, each in answers.items() if isinstance(each, Chosen)}
        if ctx.parts is None:
            return self._start(Choice.of(chosen[0]))
        return self._agree(ctx.parts, chosen)

    def _agree(self, parts: Parts, chosen: dict[int, Chosen]) -> Step:
        """Start from the highest complete step if every agent has chosen it; else let them choose that or less."""
        ctx = self._context
        ctx.listener.agree(ctx.token)
        limit: int | None = self._asked[0]["limit"]
        allowed = [
            step for step in parts.whole if step not in ctx.saves.avoided and (limit is None or step <= limit)
        ]
        why_not = {
            f"{ctx.placement[number]}: {name}": why
            for number, each in chosen.items()
            for name, why in each.why_not.items()
        }
        why_not.update(parts.why_not())
        if not allowed:
            return self._start(Choice(why_not=why_not))
        step = max(allowed)
        paths = {number: each.path for number, each in chosen.items() if each.step == step and each.path}
        if len(paths) == len(chosen):
            return self._start(Choice(step, paths[0], why_not, paths))
        below = step if limit is None or step < limit else step - 1
        return self._ask({number: {**each, "limit": below} for number, each in self._asked.items()})

    def _start(self, choice: Choice) -> Step:
        ctx = self._context
        launch = self._launch = ctx.beginning.launch(
            ctx.number, ctx.decision, ctx.placement, choice, ctx.gang
        )
        ctx.set_out(ctx.number, ctx.placement, Start(launch.resume_step, launch.resume_path))
        ctx.saves.begin_attempt()
        if ctx.parts is not None:
            ctx.parts.begin(ctx.placement, ctx.clock.epoch())
        note = ctx.beginning.line(launch, ctx.token).fields_to_json()
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
                counted=ctx.saves.are_counted,
            )
        )
        return Watch()
