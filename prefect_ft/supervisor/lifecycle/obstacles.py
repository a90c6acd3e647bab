"""Deals with obstacles to carrying out a decision, once none of its ranks runs."""

from __future__ import annotations

from prefect_ft.model import RESTARTS
from prefect_ft.supervisor.asking import AllStopped
from prefect_ft.supervisor.failures import AttemptFailedError
from prefect_ft.supervisor.judging import Obstacle, Unfit
from prefect_ft.supervisor.lifecycle.context import Context
from prefect_ft.supervisor.lifecycle.step import Enact, Finish, Go, Halt, Step
from prefect_ft.supervisor.times import ANSWER_TIMEOUT_S


class Obstacles:
    """The state `clearing`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._obstacle: Obstacle | None = None
        """The obstacle to judge once nothing runs."""
        self._met_ahead: Obstacle | None = None
        """The obstacle that was met before the attempt was requested."""

    def met_ahead(self) -> Obstacle | None:
        """Return the obstacle that was met before the attempt was requested, and clear it."""
        obstacle, self._met_ahead = self._met_ahead, None
        return obstacle

    def meet(self, obstacle: Obstacle) -> Step:
        """End what may run, then judge the obstacle; while no attempt is requested, only remember it."""
        ctx = self._context
        if ctx.is_ahead:
            self._met_ahead, ctx.listener.attempt = obstacle, None
            return Go("idle")
        if isinstance(obstacle, Unfit):
            return self._judge(obstacle)
        self._obstacle = obstacle
        return self.clear()

    def clear(self) -> Step:
        """End what may run, before a decision about it."""
        ctx = self._context
        ctx.gang.stop(ctx.token, 0.0, complete=False)
        return Go("clearing", AllStopped(ctx.roster.reached, ctx.now_s, 0.0, ANSWER_TIMEOUT_S))

    def cleared(self) -> Step:
        """Judge the obstacle; without one, rest."""
        ctx = self._context
        ctx.resuming.deaths += ctx.gang.halt().deaths
        ctx.listener.attempt = None
        obstacle, self._obstacle = self._obstacle, None
        if obstacle is None:
            return Go("idle")
        return Halt() if ctx.wants_stop else self._judge(obstacle)

    def _judge(self, obstacle: Obstacle) -> Step:
        """Carry out the decision about an obstacle, or give up."""
        ctx = self._context
        incident = ctx.judging.incident_of(obstacle, ctx.decision, ctx.last_started)
        decision = ctx.judging.judge(incident, ctx.number)
        if decision.action in RESTARTS:
            return Enact(decision)
        return Finish(AttemptFailedError(incident, decision))
