"""What the store knows and decides: which ranks take part, when all restart, and keys with blocking waits.

Owns the rounds. One iteration of the wrapped function runs between two of them; a round is complete when
every living rank has entered it. Messages in, messages out: no socket, no clock, no thread, so that
any process with a loop can host it.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, FrozenSet, Hashable, Iterable, List, Optional, Set, Tuple

Message = Dict[str, Any]
Connection = Hashable

COMPLETED = "completed"
"""The value of `over` when all ranks have completed the function."""

NONE_YET = -1
"""The iteration that has ended when a rank begins to listen."""

DESERTED = "all ranks have gone"


class Coordinator:
    """Serves the ranks of one call of the wrapper; `over` says why it is over, None while it is not.

    `deadline_s` is when `expire` is to be called, by the host's monotonic clock; None: not at all.
    """

    def __init__(
        self,
        send: Callable[[Iterable[Any], Message], None],
        alert: Callable[[Iterable[Any], int], None],
        drop: Callable[[Any], None],
        *,
        is_over: bool = False,
    ) -> None:
        """`send(connections, message)`; `alert(connections, iteration)` tells listening ranks that it has ended.

        `drop(connection)` closes it without a call of `left`.

        `is_over`: this serves late ranks of a call that all others have completed.
        """
        self.over: Optional[str] = COMPLETED if is_over else None
        self.deadline_s: Optional[float] = None
        self._send_all, self._send_alert, self._drop = send, alert, drop
        self._iteration = NONE_YET
        self._fault: Optional[Message] = None
        self._between = True
        """Whether the iteration has ended, or none has begun: ranks gather for the next."""
        self._size = 0
        self._barrier_s = 0.0
        self._seats: Dict[int, Connection] = {}
        self._alerts: Dict[int, Connection] = {}
        self._rank_of: Dict[Connection, int] = {}
        """Of both."""
        self._gone: Set[int] = set()
        """Ranks that no longer take part, or that never came in time."""
        self._gone_before: Set[int] = set()
        """Those of them without which an iteration has already run, or the call was completed."""
        self._entered: Dict[int, Message] = {}
        self._waiting: Dict[int, bool] = {}
        """Ranks that wait for the end of the iteration; whether they have completed it (not in reserve)."""
        self._keys: Dict[str, str] = {}
        self._readers: Dict[Connection, List[str]] = {}

    @property
    def excused(self) -> FrozenSet[int]:
        """The lost ranks without which the others have actually continued."""
        return frozenset(self._gone_before)

    @property
    def bound_ranks(self) -> FrozenSet[int]:
        """The ranks of a call that has begun and is not over, including those that it continues without."""
        return frozenset((*self._seats, *self._gone) if self._iteration >= 0 and self.over is None else ())

    @property
    def stage(self) -> Tuple[int, bool, Optional[str], int]:
        """Return what changes whenever `excused`, `bound_ranks` or `over` do; cheap."""
        return self._iteration, self._between, self.over, len(self._gone)

    # -- in ---------------------------------------------------------------------------------------

    def hear(self, connection: Connection, message: Message, now_s: float) -> None:
        """Handle one message of an authenticated connection; raises KeyError, TypeError, ValueError."""
        op = message["op"]
        if op in _OF_KEYS:
            self._on_key(connection, message)
        elif op == "listen":
            rank = int(message["rank"])
            self._alerts[rank], self._rank_of[connection] = connection, rank
            self._send_alert((connection,), NONE_YET)
        elif op == "enter":
            self._enter(connection, message, now_s)
        elif op == "fault":
            if message["iteration"] == self._iteration:
                fault = {name: message[name] for name in ("rank", "kind", "text")}
                self._end_iteration(fault, now_s, reporter=connection)
        elif op in ("done", "reserve"):
            self._wait(message, now_s)
        elif op == "give_up":
            self._close(str(message["why"]))
        else:
            raise ValueError(op)

    def left(self, connection: Connection, now_s: float) -> None:
        """Note that a connection has closed: a rank that loses one of its two is lost."""
        self._readers.pop(connection, None)
        rank = self._rank_of.pop(connection, None)
        if rank is not None and connection in (self._seats.get(rank), self._alerts.get(rank)):
            self._lose(rank, now_s)

    def expire(self, now_s: float) -> None:
        """Continue without the ranks that have not come in time."""
        self.deadline_s = None
        if not self._between:
            self._end_iteration(
                {"rank": None, "kind": "completion_timeout", "text": "others did not complete in time"}, now_s
            )
            return
        for rank in self._expected() - set(self._entered):
            self._forget(rank)
        self._note_desertion()
        self._complete_round()

    def _send(self, connection: Connection, message: Message) -> None:
        self._send_all((connection,), message)

    # -- rounds -----------------------------------------------------------------------------------

    def _enter(self, connection: Connection, message: Message, now_s: float) -> None:
        rank = int(message["rank"])
        if self._iteration < 0:
            self._gone.update(set(message["without"]) - set(self._seats))
        if self.over is not None or rank in self._gone:
            is_excluded = self.over in (None, COMPLETED)
            why = f"rank {rank} was left out: it was lost, or too late" if is_excluded else self.over
            self._send(connection, {"ev": "over", "why": why, "excluded": is_excluded})
            return
        self._seats[rank], self._rank_of[connection] = connection, rank
        self._size = max(self._size, int(message["size"]))
        if message["iteration"] != self._iteration + 1 or rank not in self._alerts:
            raise ValueError("not the next iteration")
        if not self._between:
            self._end_iteration({"rank": rank, "kind": "left", "text": ""}, now_s)
        self._entered[rank] = message
        self._barrier_s = float(message["barrier_s"])
        if self.deadline_s is None:
            self.deadline_s = now_s + self._barrier_s
        self._complete_round()

    def _expected(self) -> Set[int]:
        everyone = set(range(self._size)) if self._iteration < 0 else set(self._seats)
        return (everyone | set(self._seats)) - self._gone

    def _complete_round(self) -> None:
        if not self._between or not self._entered or not self._all_have_entered():
            return
        self._iteration += 1
        self._between, self.deadline_s = False, None
        entered, self._entered = self._entered, {}
        steps = [message["step"] for message in entered.values() if message["step"] is not None]
        message = {
            "ev": "round",
            "iteration": self._iteration,
            # The absent ranks only: with thousands of ranks, sending each of them all others would take long.
            "without": [rank for rank in range(self._size) if rank not in entered],
            "step": max(steps, default=None),
            "fault": self._fault,
        }
        keys = {rank: message["key"] for rank, message in entered.items() if "key" in message}
        if keys:
            message["keys"] = keys
        self._fault = None
        self._send_all([self._seats[rank] for rank in entered], message)

    def _all_have_entered(self) -> bool:
        """Whether no rank is missing; looks at each rank only when that is possible."""
        least = self._size - len(self._gone) if self._iteration < 0 else len(self._seats)
        return len(self._entered) >= least and not self._expected() - set(self._entered)

    def _end_iteration(self, fault: Message, now_s: float, reporter: Optional[Connection] = None) -> None:
        """Interrupt all ranks, once in an iteration: later faults are part of the same interruption.

        A rank that reports the fault itself, and not through its watch, has already left the function.
        """
        if self._between or self.over is not None:
            return
        self._between, self._fault = True, fault
        self._gone_before = self._gone - {fault["rank"]}
        self.deadline_s = now_s + self._barrier_s
        self._alert(reporter)
        waiting, self._waiting = self._waiting, {}
        self._send_all([self._seats[rank] for rank in waiting], {"ev": "fault"})
        self._keys.clear()
        readers, self._readers = self._readers, {}
        self._send_all(readers, {"ev": "stale"})

    def _alert(self, but: Optional[Connection] = None) -> None:
        knows = None if but is None else self._rank_of.get(but)
        has_left = knows is not None and self._seats.get(knows) == but
        alerts = [alert for rank, alert in self._alerts.items() if not (has_left and rank == knows)]
        self._send_alert(alerts, self._iteration)

    def _wait(self, message: Message, now_s: float) -> None:
        rank, is_done = int(message["rank"]), message["op"] == "done"
        seat = self._seats[rank]
        if self.over == COMPLETED:  # a late spare
            self._send(seat, {"ev": "complete"})
        elif self.over is not None:
            self._send(seat, {"ev": "over", "why": self.over, "excluded": False})
        elif self._between or message["iteration"] != self._iteration:
            self._send(seat, {"ev": "fault"})
        else:
            self._waiting[rank] = is_done
            if is_done and self.deadline_s is None:
                self.deadline_s = now_s + float(message["completion_s"])
            if is_done and sum(self._waiting.values()) >= int(message["active"]):
                self._complete()

    def _complete(self) -> None:
        self.over, self.deadline_s = COMPLETED, None
        self._gone_before = set(self._gone)  # ranks may leave from now on
        waiting, self._waiting = self._waiting, {}
        self._send_all([self._seats[rank] for rank in waiting], {"ev": "complete"})

    def _close(self, why: str) -> None:
        """Make all ranks give up."""
        if self.over is not None:
            return
        self.over, self.deadline_s = why, None
        self._alert()
        waiting = [self._seats[rank] for rank in {*self._entered, *self._waiting}]
        self._send_all(waiting, {"ev": "over", "why": why, "excluded": False})

    # -- losses -----------------------------------------------------------------------------------

    def _lose(self, rank: int, now_s: float) -> None:
        is_member = rank in self._seats
        self._forget(rank)
        if not is_member or self.over is not None:
            return
        self._note_desertion()
        if self._between:
            self._complete_round()
        else:
            self._end_iteration({"rank": rank, "kind": "lost", "text": "its process has gone"}, now_s)

    def _note_desertion(self) -> None:
        if self._iteration >= 0 and not self._seats:
            self.over, self.deadline_s = DESERTED, None

    def _forget(self, rank: int) -> None:
        self._gone.add(rank)
        self._entered.pop(rank, None)
        self._waiting.pop(rank, None)
        for connection in (self._seats.pop(rank, None), self._alerts.pop(rank, None)):
            if connection is not None:
                self._rank_of.pop(connection, None)
                self._drop(connection)

    # -- keys -------------------------------------------------------------------------------------

    def _on_key(self, connection: Connection, message: Message) -> None:
        if self._between or self.over is not None or message["iteration"] != self._iteration:
            self._send(connection, {"ev": "stale"})
            return
        op, names = message["op"], message["keys"]
        name, held = names[0], [name for name in names if name in self._keys]
        if op == "get":
            self._readers[connection] = names
            self._answer_readers()
        elif op == "set":
            self._put(connection, name, str(message["value"]))
        elif op == "add":
            self._put(connection, name, str(int(self._keys.get(name, "0")) + int(message["value"])))
        elif op == "swap":
            found = self._keys.get(name, "")
            self._put(connection, name, message["value"] if found == message["expected"] else found)
        else:
            if op == "delete":
                for each in held:
                    del self._keys[each]
            self._send(connection, {"ev": "value", "value": str(len(held))})

    def _put(self, connection: Connection, name: str, value: str) -> None:
        self._keys[name] = value
        self._send(connection, {"ev": "value", "value": value})
        self._answer_readers()

    def _answer_readers(self) -> None:
        for connection, names in list(self._readers.items()):
            if all(name in self._keys for name in names):
                del self._readers[connection]
                self._send(connection, {"ev": "values", "values": [self._keys[name] for name in names]})


_OF_KEYS = frozenset(("get", "set", "add", "swap", "delete", "count"))
