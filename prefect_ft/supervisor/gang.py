"""The agents of one phase's workers, spoken to as one: created, given orders, listened to, destroyed.

Owns connections and waiting; knows nothing of decisions. Everything that comes is handed to one
listener; what does not come in time is a worker that has gone.
"""

from __future__ import annotations

import hmac
import selectors
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from prefect_ft.backends.base import Address, Backend, Worker, place_of
from prefect_ft.errors import AgentError, BackendError, LeaseLostError, NewerFormatError
from prefect_ft.formats import how_to_get, this_version
from prefect_ft.model import Evidence
from prefect_ft.supervisor.calls import Calls
from prefect_ft.supervisor.enact import GangChange
from prefect_ft.supervisor.link import Event, Link, LinkLostError
from prefect_ft.supervisor.masking import Mask
from prefect_ft.supervisor.regaining import Conversation, Regaining
from prefect_ft.supervisor.stopping import StopRequest
from prefect_ft.worker import frames
from prefect_ft.worker.keys import worker_key

ANSWER_TIMEOUT_S = 30.0
"""How long an agent may take to come up, or to answer an order, before its worker counts as gone.

Longer than an agent takes to give up on processes that do not end, and on a look at checkpoints.
"""

START_RANK_S = 0.02
"""How much longer it may take to answer for each rank that it starts: ten times what that took of thousands."""

CHOOSE_TIMEOUT_S = 600.0
"""How long it may look for the checkpoint to resume from: file servers come back after minutes."""

MOST_PEERS = 8
"""Of how many others a worker is told that it may be cut off from."""

_ANSWERS = ("attached", "chosen", "started", "start_failed", "stopped", "diagnosis")

Listener = Callable[[int, Event], None]


class WorkerGoneError(Exception):
    """A worker that is needed is not there; `on_any_system`: it could be on no other system either."""

    def __init__(
        self, worker: int, why: str, system: str | None = None, *, on_any_system: bool = False
    ) -> None:
        self.worker, self.why, self.system, self.on_any_system = worker, why, system, on_any_system
        super().__init__(why)


class StopWantedError(Exception):
    """The user wants the run to stop; raised out of every wait but that for the stop itself."""


class Stopped(NamedTuple):
    """What all agents said when an attempt had ended.

    `deaths` are when writers died, in seconds since the epoch. `passed_over` is what could not be verified when the
    one agent that there is looked for the last time; None: others may have seen something else, or nobody looked.
    """

    deaths: list[float]
    passed_over: Mapping[str, str] | None


class AgentGang:
    """`listener(worker, event)` is told every event, and `{"ev": "lost"}` when an agent has gone."""

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
        listener: Listener,
        mask: Mask,
        check: Callable[[], None],
    ) -> None:
        """`calls` are made while events are waited for. `key` is the run's, of which each worker has its own.

        `check` is called before everything that changes something, and raises LeaseLostError where that
        is another orchestrator's to do.
        """
        self._backend = backend
        self._epoch = epoch
        self._check = check
        self._fence: LeaseLostError | None = None
        self._run_id, self._phase_index, self._key = run_id, phase_index, key
        self.in_process_key = hmac.digest(key.encode(), b"in-process", "sha256").hex()
        """Shown by ranks to each other's store; who knows it does not know the run's key."""
        self._stop_request = stop
        self._listener, self._mask = listener, mask
        self._selector = selectors.DefaultSelector()
        self._selector.register(stop, selectors.EVENT_READ)
        self._calls = calls
        self._selector.register(calls, selectors.EVENT_READ)
        self._workers: dict[int, Worker] = {}
        self._links: dict[int, Link] = {}
        self._addresses: dict[int, Address] = {}
        self._conversations: dict[int, Conversation] = {}
        self._regaining: dict[int, Regaining] = {}
        """Workers whose connection broke, until they are reached again, or given up."""
        self._newly_reached: set[int] = set()
        """Those that have been reached again, until they have let us in."""
        self._watch: dict[str, Any] | None = None
        """How often samples are wanted of this attempt, if more often than usual."""
        self._meeting: dict[int, Event] = {}
        """By worker, what its agent said last of where the next attempt's ranks can meet."""
        self._unusable: dict[int, str] = {}
        self._answers: dict[tuple[int, str], Event] = {}
        """By worker and kind, what its agent has answered since that was asked: several may come at once."""
        self._ending: set[int] = set()
        """The workers whose agents have said that they end the attempt by themselves."""
        self._printed_at: dict[int, float] = {}
        self.knows_checkpoints = False
        """Whether worker 0's agent, of those that look at checkpoints, has been told what is known of them."""
        self._samples: set[int] = set()
        """The workers whose agents take samples: those of earlier versions do not, and know no such orders."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The workers that exist, whether their agents answer or not."""
        return tuple(sorted(self._workers))

    def system_of(self, number: int) -> str:
        """Return the system of a worker that exists."""
        return self._workers[number].system

    def evidence(self, number: int, *, is_gone: bool) -> Evidence | None:
        """Return what the infrastructure knows of how something in a worker that exists came to its end."""
        return self._backend.evidence(self._workers[number], is_gone=is_gone)

    @property
    def reached(self) -> tuple[int, ...]:
        """The workers whose agents are attached to."""
        return tuple(sorted(self._links))

    @property
    def master(self) -> tuple[str, int]:
        """Host and port for the next attempt's rendezvous, which worker 0's agent keeps free for it.

        Raises WorkerGoneError.
        """
        port = self._meeting[0]["port"]
        if port is None:
            raise WorkerGoneError(0, "it has no free port for the rendezvous")
        return self._link(0).host, port

    @property
    def has_store(self) -> bool:
        """Whether worker 0's agent itself serves the next attempt's rendezvous, if its ranks are told so."""
        return bool(self._meeting[0].get("store", False))  # an older agent has none

    @property
    def in_process_port(self) -> int | None:
        """The port at which worker 0's agent coordinates restarts within the processes; None: it does not."""
        port: int | None = self._meeting[0].get("in_process_port")
        return port

    # -- workers ----------------------------------------------------------------------------------

    def adopt(self) -> dict[int, Event]:
        """Attach to the workers that earlier lives of the orchestrator left; return how each one stands.

        That is `attached`, or what an agent left behind that has left by itself. Workers whose agents
        neither answer nor left anything exist, and are to be destroyed, but are not among them.
        """
        newest = {found.worker.number: found for found in self._backend.find()}
        self._workers = {number: found.worker for number, found in newest.items()}
        for found in newest.values():
            if found.result is None:
                with suppress(WorkerGoneError):
                    self._attach(found.worker, found.address)
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        for number in list(self._links):
            while number in self._links and not self._answered(number, "attached"):
                if time.monotonic() >= deadline_s:
                    break
                self._take_events(deadline_s - time.monotonic())
        standings = {number: found.result for number, found in newest.items() if found.result is not None}
        for number in list(self._links):
            if self._answered(number, "attached"):
                standings[number] = self._meeting[number] = self._answers[number, "attached"]
            else:
                self._forget(number)
        return standings

    def change(
        self, change: GangChange, placement: Sequence[str], decision: int, *, is_taken_up: bool = False
    ) -> None:
        """Destroy and create workers and attach to the new ones; raises WorkerGoneError.

        Afterwards every worker of `placement` is there, answers, and runs nothing. `is_taken_up`: what
        an earlier life has created for the same decision stays, because that much has been carried out.
        """
        made = self._made(placement, decision) if is_taken_up else set()
        create = [number for number in change.create if number not in made]
        replaced = [number for number in create if number in self._workers]
        surplus = [number for number in self._workers if number >= len(placement)]
        self._exchange(sorted({*change.destroy, *replaced, *surplus} - made), create, placement, decision)
        for number in range(len(placement)):
            if number in self._unusable:
                raise WorkerGoneError(number, self._unusable[number])
            self._link(number)

    def _made(self, placement: Sequence[str], decision: int) -> set[int]:
        """Return the workers that were created for a decision, where it wants them, and that answer."""
        return {
            number
            for number, worker in self._workers.items()
            if worker.decision == decision and number in self._links
            if number < len(placement) and worker.system == placement[number]
        }

    def _exchange(
        self, destroy: Sequence[int], numbers: Sequence[int], placement: Sequence[str], decision: int
    ) -> None:
        """Destroy workers, and create those with these numbers."""
        for number in destroy:
            self._forget(number)
            self._unusable.pop(number, None)
        old = [self._workers.pop(number) for number in destroy if number in self._workers]
        workers = [
            Worker(number=number, system=placement[number], epoch=self._epoch, decision=decision)
            for number in numbers
        ]
        if not old and not workers:
            return
        self._may_act()
        self._workers |= {worker.number: worker for worker in workers}
        try:
            addresses = self._backend.exchange(old, workers)
        except BackendError as exc:
            number = (*numbers, *destroy)[0]
            raise WorkerGoneError(number, str(exc), exc.system, on_any_system=exc.on_any_system) from exc
        for worker, address in zip(workers, addresses, strict=True):
            self._attach(worker, address)
        for number, answer in self._await_answers(numbers, "attached").items():
            self._meeting[number] = answer

    def _attach(self, worker: Worker, address: Address) -> None:
        self._forget_answers(worker.number, *_ANSWERS)
        self.knows_checkpoints = self.knows_checkpoints and worker.number != 0
        try:
            link = Link(worker, address)
        except LinkLostError as exc:
            raise WorkerGoneError(worker.number, f"its agent cannot be reached: {exc}") from exc
        self._addresses[worker.number] = address
        self._conversations[worker.number] = Conversation()
        self._speak_by(link, worker.number)
        self._order(worker.number, "attach", **self._introduction(worker), have={})

    def _introduction(self, worker: Worker) -> dict[str, Any]:
        key = worker_key(self._key, place_of(self._phase_index, worker))
        return {"version": frames.VERSION, "run": self._run_id, "key": key, "epoch": self._epoch}

    def _speak_by(self, link: Link, number: int) -> None:
        self._links[number] = link
        self._selector.register(link, selectors.EVENT_READ, number)

    def _forget(self, number: int) -> None:
        self._samples.discard(number)
        if (regaining := self._regaining.pop(number, None)) is not None:
            regaining.drop()
        self._hang_up(number)

    def _hang_up(self, number: int) -> None:
        self._newly_reached.discard(number)
        self._ending.discard(number)
        link = self._links.pop(number, None)
        if link is not None:
            self._selector.unregister(link)
            link.close()

    def close(self) -> None:
        """Destroy every worker of the phase, whatever runs in it, those of earlier lives too. Idempotent.

        Unless they are another orchestrator's: then this one only hangs up.
        """
        self.hang_up()
        with suppress(LeaseLostError):
            self._may_act()
            self._backend.destroy([found.worker for found in self._backend.find()])

    def hang_up(self) -> None:
        """Let go of all agents; what they run goes on. Idempotent."""
        for number in self._present:
            self._forget(number)
        self._workers.clear()
        self._selector.close()

    # -- orders -----------------------------------------------------------------------------------

    def choose(self, token: Sequence[int], **criteria: Any) -> Event:
        """Have worker 0's agent choose the checkpoint to resume from, among what is there now."""
        self._forget_answers(0, "chosen")
        self.knows_checkpoints = True
        self._order(0, "choose", token=token, **criteria)
        return self._await_answers([0], "chosen", timeout_s=CHOOSE_TIMEOUT_S)[0]

    def start(self, orders: Mapping[int, Mapping[str, Any]], token: Sequence[int]) -> None:
        """Start an attempt's ranks; a command that cannot be started is reported to the listener."""
        self._may_act()
        self._watch = None
        peers = self._peers(orders)
        for number, fields in orders.items():
            self._forget_answers(number, "started", "start_failed", "stopped")
            self._ending.discard(number)
            self._send(number, "start", token=token, peers=peers[number], **fields)
        most = max(len(fields["ranks"]) for fields in orders.values())
        timeout_s = ANSWER_TIMEOUT_S + START_RANK_S * most
        self._await_answers(orders, "started", "start_failed", timeout_s=timeout_s)

    def _peers(self, numbers: Iterable[int]) -> dict[int, list[str]]:
        """Return for each worker the hosts of those that follow it, in a ring."""
        ring = sorted(numbers)
        hosts = [self._addresses[number].host for number in ring]
        following = [
            (hosts[at + 1 : at + 1 + MOST_PEERS] + hosts[:MOST_PEERS])[:MOST_PEERS] for at in range(len(ring))
        ]
        return {number: sorted({*following[at]} - {hosts[at]}) for at, number in enumerate(ring)}

    def ask_checkpoint(self, token: Sequence[int], signal: int | None) -> None:
        """Have all ranks asked for a checkpoint; `signal` says so besides."""
        self._may_act()
        for number in list(self._links):
            self._try_order(number, "checkpoint", token=token, signal=signal)

    def sample_every(self, token: Sequence[int], period_s: float) -> None:
        """Have all ranks sampled that often."""
        self._may_act()
        self._watch = {"token": token, "period_s": period_s}
        for number in self._sampling():
            self._try_order(number, "watch", **self._watch)

    def diagnose(self, token: Sequence[int], timeout_s: float) -> dict[int, Event]:
        """Have found out where the ranks are; return what agents answer in time, by rank."""
        self._may_act()
        asked = self._sampling()
        for number in asked:
            self._forget_answers(number, "diagnosis")
            self._try_order(number, "diagnose", token=token, timeout_s=0.8 * timeout_s)

        def is_owing(number: int) -> bool:
            is_there = number in self._links and number not in self._ending
            return is_there and not self._answered(number, "diagnosis")

        self.serve(lambda: not any(map(is_owing, asked)), timeout_s)
        answers = [
            self._answers[number, "diagnosis"] for number in asked if self._answered(number, "diagnosis")
        ]
        return {int(rank): told for answer in answers for rank, told in answer["ranks"].items()}

    def _sampling(self) -> list[int]:
        return [number for number in self._links if number in self._samples]

    def stop(self, token: Sequence[int], grace_s: float, *, complete: bool = False) -> Stopped:
        """End every process of the attempt in every worker that answers; idempotent, and not to be stopped.

        `complete`: it has come to its own good end. Afterwards all output has been heard.
        """
        self._may_act()
        fields = {"token": token, "grace_s": grace_s, "complete": complete}
        for number in self._present:
            if number not in self._ending:
                self._forget_answers(number, "stopped")
                self._try_order(number, "stop", **fields)
            elif not self._answered(number, "stopped"):
                self._conversations[number].ask("stop", fields)
        self._await_stopped(time.monotonic() + grace_s)
        stopped = {
            number: self._answers[number, "stopped"]
            for number in self._workers
            if self._answered(number, "stopped")
        }
        for number, answer in stopped.items():
            self._meeting[number] = answer
            if answer["stuck"]:
                self._unusable[number] = f"processes {answer['stuck']} hang in the kernel"
        return Stopped(
            sorted({death for answer in stopped.values() for death in answer["deaths"]}),
            stopped[0].get("passed_over") if [*self._workers] == [*stopped] == [0] else None,
        )

    def _await_stopped(self, since_s: float) -> None:
        """Wait for `stopped` from all who answer; who neither does nor hands on output is unusable.

        One after the other: of thousands that answer in any order, each is looked at a few times.
        """
        for number in self._present:
            while self._is_present(number) and not self._answered(number, "stopped"):
                silent_since_s = max(since_s, self._printed_at.get(number, 0.0))
                left_s = silent_since_s + ANSWER_TIMEOUT_S - time.monotonic()
                if left_s > 0:
                    self._take_events(left_s)
                else:
                    self._unusable[number] = "its agent does not answer"
                    self._forget(number)

    def _order(self, number: int, order: str, **fields: Any) -> None:
        """Send an order to a worker that is needed; raises WorkerGoneError."""
        self._may_act()
        self._send(number, order, **fields)

    def _send(self, number: int, order: str, **fields: Any) -> None:
        """Send an order that may be sent; raises WorkerGoneError."""
        self._link(number)
        self._try_order(number, order, **fields)

    def _try_order(self, number: int, order: str, **fields: Any) -> None:
        """Send an order; who is just being reached again gets it then, if it is one that is answered."""
        self._conversations[number].ask(order, fields)
        if number not in self._links or number in self._newly_reached:
            return
        try:
            self._links[number].send(order, **fields)
        except LinkLostError:
            self._lost(number)

    def _link(self, number: int) -> Link:
        """Return the connection to a worker's agent, waiting where it broke; raises WorkerGoneError."""
        self.serve(lambda: number not in self._regaining)
        self.serve(lambda: number not in self._newly_reached, ANSWER_TIMEOUT_S)
        if number not in self._links:
            raise WorkerGoneError(number, "its agent is gone")
        if number in self._newly_reached:
            raise WorkerGoneError(number, "its agent does not answer")
        return self._links[number]

    @property
    def _present(self) -> list[int]:
        """The workers that are not gone, whether they are spoken with or being reached again."""
        return [*self._links, *self._regaining]

    @property
    def _presence(self) -> int:
        return len(self._links) + len(self._regaining)

    def _is_present(self, number: int) -> bool:
        return number in self._links or number in self._regaining

    # -- events -----------------------------------------------------------------------------------

    def serve(
        self, until: Callable[[], bool], timeout_s: float | None = None, *, heeds_stop: bool = True
    ) -> None:
        """Hand events to the listener until `until()` holds, or the time is over.

        Raises StopWantedError, unless it is the stop itself that waits.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not until():
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            if heeds_stop and self._stop_request.wanted:
                raise StopWantedError
            self._take_events(left_s)

    def _await_answers(
        self, numbers: Iterable[int], *kinds: str, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> dict[int, Event]:
        """Wait for one of these events from each worker; raises WorkerGoneError for one that has none."""
        numbers = tuple(numbers)
        missing = list(reversed(numbers))
        present = self._presence

        def is_decided() -> bool:
            while missing and self._answered(missing[-1], *kinds):
                missing.pop()  # so that one look at all of them is enough, in whatever order they answer
            is_any_gone = self._presence < present
            return not missing or (is_any_gone and not all(map(self._is_present, unanswered())))

        def unanswered() -> list[int]:
            return [number for number in missing if not self._answered(number, *kinds)]

        self.serve(is_decided, timeout_s)
        while self._regaining.keys() & unanswered():  # that time is nobody's answer
            self.serve(lambda: not self._regaining.keys() & unanswered())
            self.serve(is_decided, timeout_s)
        for number in sorted(unanswered(), key=lambda number: (number in self._links, number)):
            self._link(number)
            raise WorkerGoneError(number, "its agent does not answer")
        return {
            number: next(self._answers[number, kind] for kind in kinds if self._answered(number, kind))
            for number in numbers
        }

    def _answered(self, number: int, *kinds: str) -> bool:
        return any((number, kind) in self._answers for kind in kinds)

    def _forget_answers(self, number: int, *kinds: str) -> None:
        """Take what was answered up to now for no answer to what is asked next."""
        for kind in kinds:
            self._answers.pop((number, kind), None)

    def _take_events(self, timeout_s: float | None) -> None:
        if self._stop_request.lost is not None:
            raise self._stop_request.lost
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._stop_request:
                self._selector.unregister(self._stop_request)  # stays readable; `wanted` says the rest
            elif key.fileobj is self._calls:
                self._calls.make()
            elif self._links.get(key.data) is key.fileobj:
                self._take(key.data)

    def _take(self, number: int) -> None:
        try:
            events = self._links[number].receive()
        except LinkLostError:
            self._lost(number)
            return
        for event in map(self._mask, events):
            if number in self._newly_reached and event["ev"] == "attached":
                self._go_on(number, event)
            else:
                self._hear(number, event)

    def _hear(self, number: int, event: Event) -> None:
        self._conversations[number].hear(event)
        self._note(number, event)
        self._listener(number, event)

    def _note(self, number: int, event: Event) -> None:
        """Keep what waits are waiting for; raises AgentError where the agent does not obey."""
        match event["ev"]:
            case "superseded":
                raise self._fenced(
                    f"an orchestrator of epoch {event['epoch']} has taken over worker {number}"
                )
            case "refused" if event["epoch"] > self._epoch:
                raise self._fenced(f"worker {number} obeys an orchestrator of epoch {event['epoch']}")
            case "refused" if (
                event["op"] == "attach" and event.get("version", frames.VERSION) > frames.VERSION
            ):
                raise NewerFormatError(
                    f"the agent of worker {number} speaks version {event['version']} of the protocol and "
                    f"prefect-ft {this_version()} speaks {frames.VERSION}; its ranks were left as they are. "
                    f"{how_to_get(event.get('release'))}"
                )
            case "refused":
                raise AgentError(f"worker {number} refused {event['op']}: {event['why']}")
            case "exited" if event.get("ends"):  # those of earlier versions wait for the order
                self._ending.add(number)
            case "sample":
                self._samples.add(number)
            case "output" | "excerpt":
                self._printed_at[number] = time.monotonic()
            case kind if kind in _ANSWERS:
                self._answers[number, kind] = event
            case _:
                pass

    def _fenced(self, why: str) -> LeaseLostError:
        """Return the error for an agent that is another orchestrator's; from now on nothing is done."""
        self._fence = LeaseLostError(why)
        return self._fence

    def _may_act(self) -> None:
        """Raise LeaseLostError if the workers are another orchestrator's."""
        if self._fence is not None:
            raise self._fence
        self._check()

    # -- connections that break ---------------------------------------------------------------------

    def _lost(self, number: int) -> None:
        """Reach an agent again whose connection broke, once for each time that it let us in."""
        may_be_there = self._conversations[number].has_begun and number not in self._newly_reached
        self._hang_up(number)
        if not may_be_there:
            self._gone(number)
            return
        self._regaining[number] = Regaining(
            self._workers[number],
            self._addresses[number],
            self._calls,
            lambda outcome: self._reached(number, outcome),
        )

    def _reached(self, number: int, outcome: Link | LinkLostError) -> None:
        del self._regaining[number]
        if isinstance(outcome, LinkLostError):
            self._gone(number)
            return
        self._newly_reached.add(number)
        self._speak_by(outcome, number)
        self._may_act()
        try:
            introduction = self._introduction(self._workers[number])
            outcome.send("attach", **introduction, have=self._conversations[number].have)
        except LinkLostError:
            self._lost(number)

    def _go_on(self, number: int, attached: Event) -> None:
        """Hear what was missed, and ask again what was not answered; an agent that knows nothing of it is gone."""
        self._newly_reached.discard(number)
        resumed = self._conversations[number].resumed(attached)
        if resumed is None:
            self._gone(number)
            return
        self._listener(number, attached)
        for event in resumed.missed:
            self._hear(number, event)
        orders = [resumed.order] if resumed.order is not None else []
        if self._watch is not None and number in self._samples:
            orders.append(("watch", self._watch))
        for order, fields in orders:
            self._try_order(number, order, **fields)

    def _gone(self, number: int) -> None:
        self._forget(number)
        answers = self._backend.answers(self._workers[number].system)
        self._listener(
            number, {"ev": "lost", "system_answers": answers, "evidence": self.evidence(number, is_gone=True)}
        )
