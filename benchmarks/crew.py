"""A gang that its holder leads step by step, waiting for each: no decisions, no journal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prefect_ft.backends.base import Backend, Worker
from prefect_ft.errors import LeaseLostError
from prefect_ft.supervisor.asking import AllStopped, Answers, Diagnoses, Until, Wait
from prefect_ft.supervisor.calls import Calls
from prefect_ft.supervisor.driver import Driver
from prefect_ft.supervisor.enact import GangChange
from prefect_ft.supervisor.event_parts import Diagnosed
from prefect_ft.supervisor.events import Attached, Chosen, Event, Lost, Started, StartFailed
from prefect_ft.supervisor.gang import Gang, Halt
from prefect_ft.supervisor.masking import Mask
from prefect_ft.supervisor.roster import Exchanged, ExchangeFailed, Fact, Order, Roster, WorkerGoneError
from prefect_ft.supervisor.stopping import StopRequest
from prefect_ft.supervisor.times import ANSWER_TIMEOUT_S, CHOOSE_TIMEOUT_S, start_timeout_s
from prefect_ft.worker.protocol import Token


class StopWantedError(Exception):
    """The user wants the run to stop; raised out of every wait but that for the stop itself."""


class Crew:
    """`listener(worker, event)` hears every event, and `Lost` of an agent that has gone."""

    def __init__(
        self,
        backend: Backend,
        *,
        run_id: str,
        phase_index: int,
        key: str,
        epoch: int,
        stop: StopRequest,
        calls: Calls,
        listener: Callable[[int, Event | Lost], None],
        mask: Mask,
        check: Callable[[], None],
    ) -> None:
        """As `Supervisor` and `Driver` take them."""
        self._backend, self._stop, self._listener = backend, stop, listener
        self.roster = Roster(run_id=run_id, phase_index=phase_index, key=key, epoch=epoch, loss=self._loss)
        self.gang = Gang(self.roster, key)
        self._driver = Driver(self, backend, stop=stop, calls=calls, mask=mask, check=check)
        self._wait: Wait | None = None
        self._now_s = 0.0
        self._failure: WorkerGoneError | None = None
        self._results: list[Exchanged | ExchangeFailed] = []

    def _loss(self, worker: Worker) -> Lost:
        evidence = self._backend.evidence(worker, is_gone=True)
        return Lost(system_answers=self._backend.answers(worker.system), evidence=evidence)

    # -- what the driver asks -----------------------------------------------------------------------

    @property
    def due_s(self) -> float | None:
        """When `handle` has to be called though nothing is known, by the driver's clock; None: never."""
        return self._wait.due_s if self._wait is not None else None

    @property
    def fence(self) -> LeaseLostError | None:
        """Why nothing may be done to workers any more: they are another orchestrator's."""
        return self.roster.fence

    def handle(self, facts: Sequence[Fact], now_s: float) -> list[Order]:
        """Take what is known now, and return what is to be done. Raises PrefectFTError."""
        self._now_s = now_s
        for fact in facts:
            if isinstance(fact, (Exchanged, ExchangeFailed)):
                self._results.append(fact)
            else:
                for heard in self.roster.handle(fact, now_s):
                    self._listener(heard.worker, heard.event)
        try:
            if self._wait is not None and self._wait.look(self.roster, now_s):
                self._wait = None
        except WorkerGoneError as gone:
            self._wait, self._failure = None, gone
        return self.roster.drain()

    def let_go(self) -> None:
        """Let go of all agents; what they run goes on. Idempotent."""
        self.roster.let_go_of_all()
        self.roster.drain()

    # -- what its holder asks -----------------------------------------------------------------------

    def change(self, change: GangChange, placement: Sequence[str], decision: int) -> None:
        """Destroy and create workers and attach to the new ones; raises WorkerGoneError.

        Afterwards every worker of `placement` is there, answers, and runs nothing.
        """
        exchange = self.roster.exchange(change, placement, decision)
        if exchange is not None:
            self._await(Until(lambda: bool(self._results)))
            result = self._results.pop()
            if isinstance(result, ExchangeFailed):
                error, number = result.error, (*exchange.new, *exchange.old)[0].number
                raise WorkerGoneError(
                    number, str(error), error.system, on_any_system=error.on_any_system
                ) from error
            self.roster.exchanged(exchange.new, result.hosts)
            numbers = [worker.number for worker in exchange.new]
            self._await(Answers(numbers, (Attached,), time.monotonic(), ANSWER_TIMEOUT_S))
        self.roster.check_usable()

    def choose(self, token: Token, **criteria: Any) -> Chosen:
        """Have worker 0's agent choose the checkpoint to resume from; raises WorkerGoneError."""
        self.gang.choose(token, {0: criteria})
        self._await(Answers([0], (Chosen,), time.monotonic(), CHOOSE_TIMEOUT_S))
        chosen = self.roster.answer(0, Chosen)
        assert isinstance(chosen, Chosen)
        return chosen

    def start(self, orders: Mapping[int, Mapping[str, Any]], token: Token) -> None:
        """Start an attempt's ranks; a command that cannot be started is reported to the listener."""
        self.gang.start(orders, token)
        self._await(Answers(orders, (Started, StartFailed), time.monotonic(), start_timeout_s(orders)))

    def diagnose(self, token: Token, timeout_s: float) -> dict[int, Diagnosed]:
        """Have found out where the ranks are; return what agents answer in time, by rank."""
        asked = self.gang.sampling
        self.gang.diagnose(token, 0.8 * timeout_s)
        self._await(Diagnoses(asked, time.monotonic(), timeout_s))
        return {rank: each for ranks in self.gang.diagnosed.values() for rank, each in ranks.items()}

    def stop(self, token: Token, grace_s: float, *, complete: bool = False) -> Halt:
        """End every process of the attempt in every worker that answers; idempotent, and not to be stopped.

        `complete`: it has come to its own good end. Afterwards all output has been heard.
        """
        self.gang.stop(token, grace_s, complete=complete)
        wait = AllStopped(self.roster.reached, time.monotonic(), grace_s, ANSWER_TIMEOUT_S)
        self._await(wait, heeds_stop=False)
        return self.gang.halt()

    def serve(self, until: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Listen until `until()` holds, or the time is over; raises StopWantedError."""
        self._driver.run(lambda: until() or self._stop.wanted is not None, timeout_s)
        if not until() and self._stop.wanted is not None:
            raise StopWantedError

    def _await(self, wait: Wait, *, heeds_stop: bool = True) -> None:
        self._wait = wait
        self._driver.run(lambda: self._wait is None or (heeds_stop and self._stop.wanted is not None))
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._wait is not None:
            self._wait = None
            raise StopWantedError

    def hang_up(self) -> None:
        """Let go of all agents; what they run goes on. Idempotent."""
        self._driver.hang_up()

    def close(self) -> None:
        """Destroy every worker of the phase, whatever runs in it. Idempotent."""
        self._driver.close()
