"""Makes the transitions between states: takes facts and the time from the driver, and returns orders.

It judges obstacles, completions and cancellations; other ends of an attempt are judged by its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from typing_extensions import assert_never

from prefect_ft.backends.base import Found
from prefect_ft.errors import LeaseLostError
from prefect_ft.model import Decision
from prefect_ft.supervisor.asking import Wait
from prefect_ft.supervisor.ending import Ending
from prefect_ft.supervisor.events import Event, Lost
from prefect_ft.supervisor.failures import AttemptFailedError, HandedOverError
from prefect_ft.supervisor.lifecycle.adopting import Adopting, Loss
from prefect_ft.supervisor.lifecycle.context import Context
from prefect_ft.supervisor.lifecycle.halting import Halting
from prefect_ft.supervisor.lifecycle.obstacles import Obstacles
from prefect_ft.supervisor.lifecycle.starting import Starting
from prefect_ft.supervisor.lifecycle.states import HEEDS_STOP, RESTS, TRANSITIONS, State
from prefect_ft.supervisor.lifecycle.step import Clear, Enact, Finish, Go, Halt, Meet, Step, Watch
from prefect_ft.supervisor.lifecycle.watching import Watching
from prefect_ft.supervisor.moving import Move
from prefect_ft.supervisor.roster import Exchanged, ExchangeFailed, Fact, Order, WorkerGoneError
from prefect_ft.supervisor.unsaved import Unsaved
from prefect_ft.worker.protocol import Token


class Lifecycle:
    """One phase's attempts. `outcome` is how the last one ended; None: it has not, or the phase is complete."""

    def __init__(self, context: Context, *, ending: Ending, unsaved: Unsaved, loss: Loss) -> None:
        self._context = context
        self._adopting = Adopting(context, loss)
        self._starting = Starting(context)
        self._watching = Watching(context, unsaved)
        self._halting = Halting(context, ending, self._watching)
        self._obstacles = Obstacles(context)
        self._next = self._table()
        self.state: State = "idle"
        self.outcome: AttemptFailedError | HandedOverError | None = None
        self._wait: Wait | None = None

    def _table(self) -> Mapping[State, Callable[[], Step]]:
        """Return the step to take when the wait of a state is over."""
        starting, watching, halting = self._starting, self._watching, self._halting
        return {
            "adopting": self._adopting.adopted,
            "clearing": self._obstacles.cleared,
            "backing-off": starting.backed_off,
            "checking": starting.checked,
            "exchanging": starting.has_exchanged,
            "attaching": starting.choose,
            "choosing": starting.chose,
            "starting": starting.started,
            "running": watching.look,
            "diagnosing": watching.diagnosed,
            "saving": halting.stop_ranks,
            "stopping": halting.stopped,
            "healing": halting.healed,
        }

    # -- what the driver asks ---------------------------------------------------------------------

    @property
    def due_s(self) -> float | None:
        """When `handle` has to be called though there are no facts, by the driver's clock; None: never."""
        return self._wait.due_s if self._wait is not None else None

    @property
    def fence(self) -> LeaseLostError | None:
        """Why workers must not be touched any more: they belong to another orchestrator."""
        return self._context.roster.fence

    def handle(self, facts: Sequence[Fact], now_s: float) -> list[Order]:
        """Take the facts, and return the orders. Raises PrefectFTError where that ends the phase."""
        self._context.now_s = now_s
        for fact in facts:
            if isinstance(fact, (Exchanged, ExchangeFailed)):
                self._starting.exchanged(fact)
            else:
                for heard in self._context.roster.handle(fact, now_s):
                    self._listen(heard.worker, heard.event)
        self._advance()
        return self._context.roster.drain()

    def _listen(self, worker: int, event: Event | Lost) -> None:
        if self.state == "adopting":
            self._adopting.put_off(worker, event)
        else:
            self._context.listener.hear(worker, event)

    def _advance(self) -> None:
        """Make transitions until a state has to wait."""
        while self._wait is not None:
            if self._context.is_ahead and self.state == "running":
                return  # nothing follows until the attempt is requested
            try:
                if self._context.wants_stop and self.state in HEEDS_STOP:
                    self._take(Halt())
                elif self._wait.look(self._context.roster, self._context.now_s):
                    self._take(self._next[self.state]())
                else:
                    return
            except WorkerGoneError as gone:
                self._take(Meet(gone))

    def _take(self, step: Step) -> None:
        """Take steps until one of them leads into a state."""
        while not isinstance(step, Go):
            step = self._after(step)
        assert step.state in TRANSITIONS[self.state], (self.state, step.state)
        self.state, self._wait = step.state, step.wait

    def _after(self, step: Enact | Watch | Halt | Meet | Clear | Finish) -> Step:
        match step:
            case Enact(decision):
                return self._starting.enact(decision)
            case Watch():
                return self._watching.begin()
            case Halt():
                return self._halting.begin()
            case Meet(obstacle):
                return self._obstacles.meet(obstacle)
            case Clear():
                self._starting.may_have_begun = True
                return self._obstacles.clear()
            case Finish(outcome):
                self.outcome, self._context.listener.attempt = outcome, None
                return Go("ended")
            case _:
                assert_never(step)

    def validate_state(self) -> None:
        """Raise AssertionError where the state contradicts itself; for tests."""
        attempt = self._context.attempt
        assert (self._wait is None) == (self.state in RESTS), self.state
        assert attempt is None or attempt.number == self.number
        assert self.state not in ("running", "diagnosing", "saving") or attempt is not None
        assert self.state not in ("stopping", "healing") or self._halting.has_ended
        assert self.state not in ("exchanging", "attaching", "choosing") or attempt is None
        assert self.state != "ended" or attempt is None
        self._context.roster.validate()

    # -- what the supervisor asks -----------------------------------------------------------------

    @property
    def is_resting(self) -> bool:
        """Whether no state waits: the next attempt may begin."""
        return self.state in RESTS

    @property
    def is_running(self) -> bool:
        """Whether the ranks of an attempt have been started, and it has not ended."""
        return self.state == "running"

    @property
    def number(self) -> int:
        """The last attempt's, from 1; 0: none has begun."""
        return self._context.number

    @property
    def token(self) -> Token:
        """The last attempt's token."""
        return self._context.token

    def begin(self, now_s: float) -> None:
        """Begin the next attempt, or continue one that has begun."""
        self._context.now_s, self._context.is_ahead = now_s, False
        if not self.is_resting:
            return
        self.outcome = None
        self._halting.forget()
        self._starting.note()
        obstacle = self._obstacles.met_ahead()
        if self._context.wants_stop:
            self._take(Halt())
        elif obstacle is not None:
            self._take(Meet(obstacle))
        else:
            self._take(Enact(self._context.decision))

    def end(self, why: str, now_s: float) -> None:
        """End the attempt that runs or begins, if there is one."""
        if self.state in HEEDS_STOP:
            self._context.now_s, self._context.is_ahead = now_s, False
            self._halting.because(why)
            self._take(Halt())

    def adopt(self, found: Sequence[Found], now_s: float, *, by_hand: bool) -> None:
        """Adopt what an earlier orchestrator left: workers, an attempt, running or ended. `by_hand`: a person asked."""
        self._context.now_s, self._context.is_ahead = now_s, True
        self._take(self._adopting.begin(found, by_hand=by_hand))

    def move(self, move: Move, now_s: float, *, by_hand: bool) -> Decision:
        """Continue the phase in its next tenure; return the decision about the end of the earlier one."""
        self._context.now_s = now_s
        return self._adopting.move(move, by_hand=by_hand)

    def sample_every(self, period_s: float) -> None:
        """Sample the ranks at this period."""
        self._context.gang.sample_every(self._context.token, period_s)

    def let_go(self) -> None:
        """Disconnect from all agents, which keep running. Idempotent."""
        self._context.roster.let_go_of_all()
        self._context.roster.drain()
