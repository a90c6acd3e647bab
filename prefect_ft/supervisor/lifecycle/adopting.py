"""Adopts what an earlier orchestrator left: workers, an attempt that runs or has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from prefect_ft.backends.base import Found, Worker
from prefect_ft.decide import set_aside
from prefect_ft.model import RESTARTS, Decision
from prefect_ft.supervisor.asking import Adoption
from prefect_ft.supervisor.comeback import Standing, is_open, standing, unheard
from prefect_ft.supervisor.events import AgentStanding, Attached, Event, Left, Lost
from prefect_ft.supervisor.lifecycle.context import Context
from prefect_ft.supervisor.lifecycle.step import Clear, Go, Step, Watch
from prefect_ft.supervisor.moving import Move, hand_over_in, heard_last_t, incidents
from prefect_ft.supervisor.recording import Comeback
from prefect_ft.supervisor.times import ANSWER_TIMEOUT_S
from prefect_ft.worker.forms import FormError

Loss = Callable[[str, Worker | None], Lost]
"""Returns how a worker on a system was lost; None: only the system is known."""


class Adopting:
    """The state `adopting`."""

    def __init__(self, context: Context, loss: Loss) -> None:
        self._context, self._loss = context, loss
        self._comeback: Comeback | None = None
        self._left: dict[int, Left] = {}
        """Results of agents that ended by themselves under an earlier orchestrator, by worker."""
        self._early: list[tuple[int, Event | Lost]] = []
        """Events received before the state of the phase was known."""

    def put_off(self, worker: int, event: Event | Lost) -> None:
        """Keep an agent's event until the state of the phase is known."""
        self._early.append((worker, event))

    def begin(self, found: Sequence[Found], *, by_hand: bool) -> Step:
        """Connect to the agents of these workers."""
        ctx = self._context
        self._comeback = self._back(by_hand=by_hand)
        ctx.saves.recall(ctx.journal.lines, set_aside(ctx.plan.policy, ctx.journal.history()))
        newest = {each.worker.number: each for each in found}
        for number, each in newest.items():
            if each.result is None:
                ctx.roster.adopt(each.worker, each.address.host)
            else:
                ctx.roster.keep(each.worker)
                with suppress(FormError):  # an unreadable result does not count: the worker is created anew
                    self._left[number] = Left.read(each.result)
        live = [number for number, each in newest.items() if each.result is None]
        return Go("adopting", Adoption(live, ctx.now_s, ANSWER_TIMEOUT_S))

    def adopted(self) -> Step:
        """Determine the state of the phase, and continue from there."""
        ctx, comeback = self._context, self._comeback
        agents: dict[int, AgentStanding] = {**self._left, **ctx.roster.answers(Attached)}
        assert comeback is not None
        found = standing(ctx.journal.lines, agents, ctx.plan.phase_index, ctx.plan.ranks_per_worker)
        ctx.number, ctx.last_started = found.attempt, found.attempt or None
        ctx.resuming.deaths = [death for agent in agents.values() for death in agent.deaths]
        if found.note is not None:
            ctx.saves.begin_attempt()
            ctx.saves.set_aside(set_aside(ctx.plan.policy, ctx.journal.history()))
        comeback.record(
            ctx.plan.phase, found, agents, ctx.roster.reached, journal=ctx.journal, clock=ctx.clock
        )
        if ctx.parts is not None:
            ctx.parts.recall(ctx.journal.lines, ctx.clock.epoch() - ctx.clock.now())
        if found.watched is not None:
            self._adopt_attempt(found, found.watched)
        ctx.reports.recall()
        early, self._early = self._early, []
        for worker, event in [*_unheard(agents), *early]:
            ctx.listener.hear(worker, event)
        return Clear() if found.watched is None else Watch()

    def move(self, move: Move, *, by_hand: bool) -> Decision:
        """Judge how the phase's earlier tenure ended, of which no worker is left; return the decision."""
        ctx, lines = self._context, self._context.journal.lines
        last_t = heard_last_t(lines)
        ctx.saves.recall(lines, set_aside(ctx.plan.policy, ctx.journal.history()))
        if ctx.parts is not None:
            ctx.parts.recall(lines, ctx.clock.epoch() - ctx.clock.now())
        found = standing(lines, {}, ctx.plan.phase_index, ctx.plan.ranks_per_worker)
        ctx.number, ctx.last_started = found.attempt, found.attempt or None
        back = self._back(by_hand=by_hand)
        back.record(ctx.plan.phase, Standing(found.attempt), {}, (), journal=ctx.journal, clock=ctx.clock)
        to_judge = incidents(
            move,
            lines,
            attempt=found.attempt,
            is_open=is_open(lines),
            t=ctx.clock.now(),
            known_saves=ctx.saves.facts() if ctx.plan.has_checkpoints else {},
        )
        left = hand_over_in(lines)
        facts = left.beside if left is not None else {"ended_t": last_t}
        for incident in to_judge:
            decision = ctx.judging.judge(incident, found.attempt, **facts)
            if decision.action in RESTARTS:
                facts = {}  # of the attempt, which has been ended
            elif not decision.interrupts_nothing:
                break
        return decision

    def _back(self, *, by_hand: bool) -> Comeback:
        """Return the comeback that begins now."""
        ctx = self._context
        now, since_s = ctx.clock.now(), ctx.free_since_s
        return Comeback(
            ctx.epoch,
            by_hand=by_hand,
            silent_s=now - ctx.journal.last_t,
            unwatched_s=None if since_s is None else max(0.0, now - ctx.clock.at(int(since_s * 1e9))),
        )

    def _adopt_attempt(self, found: Standing, placement: tuple[str, ...]) -> None:
        """Restore the state of an attempt as if it had been watched all the time."""
        ctx = self._context
        ctx.set_out(found.attempt, placement, found.start)
        for number in found.missing:
            worker = ctx.roster.worker(number) if number in ctx.roster.numbers else None
            ctx.running.take(number, self._loss(placement[number], worker))


def _unheard(agents: Mapping[int, AgentStanding]) -> list[tuple[int, Event]]:
    """Return all events that no orchestrator has received; exits last, in their order."""
    reports = [(worker, event) for worker, agent in agents.items() for event in unheard(agent)]
    return sorted(reports, key=lambda each: getattr(each[1], "t_ns", 0))
