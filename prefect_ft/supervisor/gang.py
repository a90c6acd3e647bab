"""The agents of one phase's workers, spoken to as one: created, given orders, listened to, destroyed.

Owns connections and waiting; knows nothing of decisions. Everything that comes is handed to one
listener; what does not come in time is a worker that has gone.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prefect_ft.backends.base import Backend, Worker
from prefect_ft.errors import AgentError, BackendError
from prefect_ft.supervisor.enact import GangChange
from prefect_ft.supervisor.link import Event, Link, LinkLostError
from prefect_ft.supervisor.stopping import StopRequest
from prefect_ft.worker import frames

ANSWER_TIMEOUT_S = 30.0
"""How long an agent may take to come up, or to answer an order, before its worker counts as gone."""

Listener = Callable[[int, Event], None]


class WorkerGoneError(Exception):
    """A worker that is needed is not there."""

    def __init__(self, worker: int, why: str, system: str | None = None) -> None:
        self.worker, self.why, self.system = worker, why, system
        super().__init__(why)


class StopWantedError(Exception):
    """The user wants the run to stop; raised out of every wait but that for the stop itself."""


class AgentGang:
    """`listener(worker, event)` is told every event, and `{"ev": "lost"}` when an agent has gone."""

    def __init__(
        self, backend: Backend, *, run_id: str, key: str, epoch: int, stop: StopRequest, listener: Listener
    ) -> None:
        """`key` is the run's, by which agents know their orchestrator."""
        self._backend = backend
        self._introduction = {"version": frames.VERSION, "run": run_id, "key": key, "epoch": epoch}
        self._stop_request = stop
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(stop, selectors.EVENT_READ)
        self._workers: dict[int, Worker] = {}
        self._links: dict[int, Link] = {}
        self._ports: dict[int, int] = {}
        self._unusable: dict[int, str] = {}
        self._answers: dict[int, Event] = {}
        self._created: dict[int, int] = {}

    @property
    def numbers(self) -> tuple[int, ...]:
        """The workers that exist, whether their agents answer or not."""
        return tuple(sorted(self._workers))

    @property
    def master(self) -> tuple[str, int]:
        """Host and port for the next attempt's rendezvous, which worker 0's agent keeps free for it."""
        return self._links[0].host, self._ports[0]

    # -- workers ----------------------------------------------------------------------------------

    def change(self, change: GangChange, placement: Sequence[str]) -> None:
        """Destroy and create workers and attach to the new ones; raises WorkerGoneError.

        Afterwards every worker of `placement` is there, answers, and runs nothing.
        """
        self._destroy(change.destroy)
        self._create(change.create, placement)
        for number in range(len(placement)):
            if number in self._unusable:
                raise WorkerGoneError(number, self._unusable[number])
            if number not in self._links:
                raise WorkerGoneError(number, "its agent is gone")

    def _destroy(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._forget(number)
            self._unusable.pop(number, None)
        self._backend.destroy([self._workers.pop(number) for number in numbers if number in self._workers])

    def _create(self, numbers: Sequence[int], placement: Sequence[str]) -> None:
        if not numbers:
            return
        for number in numbers:
            self._created[number] = self._created.get(number, 0) + 1
        workers = [
            Worker(number=number, system=placement[number], incarnation=self._created[number])
            for number in numbers
        ]
        self._workers |= {worker.number: worker for worker in workers}
        try:
            addresses = self._backend.create(workers)
        except BackendError as exc:
            raise WorkerGoneError(numbers[0], str(exc), exc.system) from exc
        for worker, address in zip(workers, addresses, strict=True):
            self._attach(worker, address)
        for number, answer in self._await_answers(numbers, "attached").items():
            self._ports[number] = answer["port"]

    def _attach(self, worker: Worker, address: Any) -> None:
        try:
            link = Link(worker, address)
            link.send("attach", **self._introduction)
        except LinkLostError as exc:
            raise WorkerGoneError(worker.number, str(exc)) from exc
        self._links[worker.number] = link
        self._selector.register(link, selectors.EVENT_READ, worker.number)

    def _forget(self, number: int) -> None:
        link = self._links.pop(number, None)
        if link is not None:
            self._selector.unregister(link)
            link.close()

    def close(self) -> None:
        """Destroy every worker, whatever runs in it. Idempotent."""
        self._destroy(self.numbers)
        self._selector.close()

    # -- orders -----------------------------------------------------------------------------------

    def choose(self, token: Sequence[int], **criteria: Any) -> Event:
        """Have worker 0's agent choose the checkpoint to resume from, among what is there now."""
        self._order(0, "choose", token=token, **criteria)
        return self._await_answers([0], "chosen")[0]

    def start(self, orders: Mapping[int, Mapping[str, Any]], token: Sequence[int]) -> None:
        """Start an attempt's ranks; a command that cannot be started is reported to the listener."""
        for number, fields in orders.items():
            self._order(number, "start", token=token, **fields)
        self._await_answers(orders, "started", "start_failed")

    def stop(self, token: Sequence[int], grace_s: float) -> None:
        """End every process of the attempt in every worker that answers; idempotent, and not to be stopped."""
        for number in list(self._links):
            self._try_order(number, "stop", token=token, grace_s=grace_s)
        deadline = time.monotonic() + ANSWER_TIMEOUT_S + grace_s
        waiting = self._expect(self._links)
        while waiting := {number for number in waiting if not self._answered(number, "stopped")} & set(self._links):
            if time.monotonic() > deadline:
                self._unusable |= {number: "its agent does not answer" for number in waiting}
                return
            self._take_events(deadline - time.monotonic())
        for number, answer in self._answers.items():
            if answer["ev"] == "stopped":
                self._ports[number] = answer["port"]
                if answer["stuck"]:
                    self._unusable[number] = f"processes {answer['stuck']} hang in the kernel"

    def _order(self, number: int, order: str, **fields: Any) -> None:
        try:
            self._links[number].send(order, **fields)
        except LinkLostError as exc:
            self._lost(number)
            raise WorkerGoneError(number, str(exc)) from exc

    def _try_order(self, number: int, order: str, **fields: Any) -> None:
        try:
            self._links[number].send(order, **fields)
        except LinkLostError:
            self._lost(number)

    # -- events -----------------------------------------------------------------------------------

    def serve(self, until: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Hand events to the listener until `until()` holds, or the time is over; raises StopWantedError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not until():
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            if self._stop_request.wanted:
                raise StopWantedError
            self._take_events(left_s)

    def _await_answers(self, numbers: Sequence[int] | Mapping[int, Any], *kinds: str) -> dict[int, Event]:
        """Wait for one of these events from each worker; raises WorkerGoneError for one that has none."""
        waiting = set(self._expect(numbers))

        def missing() -> set[int]:
            return {number for number in waiting if not self._answered(number, *kinds)}

        self.serve(lambda: not missing() or not waiting <= set(self._links), ANSWER_TIMEOUT_S)
        for number in sorted(missing()):
            why = "its agent does not answer" if number in self._links else "its agent is gone"
            raise WorkerGoneError(number, why)
        return {number: self._answers[number] for number in waiting}

    def _expect(self, numbers: Sequence[int] | Mapping[int, Any]) -> set[int]:
        for number in numbers:
            self._answers.pop(number, None)
        return set(numbers)

    def _answered(self, number: int, *kinds: str) -> bool:
        return self._answers.get(number, {}).get("ev") in kinds

    def _take_events(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._stop_request:
                self._selector.unregister(self._stop_request)  # stays readable; `wanted` says the rest
            elif self._links.get(key.data) is key.fileobj:
                self._take(key.data)

    def _take(self, number: int) -> None:
        try:
            events = self._links[number].receive()
        except LinkLostError:
            self._lost(number)
            return
        for event in events:
            if event["ev"] == "refused":
                raise AgentError(f"worker {number} refused {event['op']}: {event['why']}")
            if event["ev"] in ("attached", "chosen", "started", "start_failed", "stopped"):
                self._answers[number] = event
            self._listener(number, event)

    def _lost(self, number: int) -> None:
        self._forget(number)
        self._listener(number, {"ev": "lost"})
