"""One call of the wrapper in one rank: its connections, its watch, and its messages to the store.

Owns everything that must be closed again. The wrapper owns the order of events.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from typing import Any, Callable, Collection, Dict, FrozenSet, List, NamedTuple, Optional, Tuple

from prefect_ft.inprocess import launcher_store, server
from prefect_ft.inprocess.client import Address, Connection
from prefect_ft.inprocess.errors import ExcludedError, RestartAbort, StoreLostError
from prefect_ft.inprocess.interrupt import Interrupter
from prefect_ft.inprocess.killer import Killer
from prefect_ft.inprocess.limits import Limits
from prefect_ft.inprocess.progress import Progress
from prefect_ft.inprocess.state import Fault
from prefect_ft.inprocess.watch import Watch
from prefect_ft.worker import frames
from prefect_ft.worker.coordination import KEY_VARIABLE, STORE_VARIABLE, port_served_at

PORT_VARIABLE = "PREFECT_FT_INPROCESS_PORT"
"""The store's port on MASTER_ADDR where no agent serves it; if that is not set, torchrun's store has a free one,
else it is the one after MASTER_PORT."""

_ENTER = '{"op":"enter","rank":%d,"size":%d,"iteration":%d,"step":%s,"without":%s,"barrier_s":%r%s}'
"""Formatted by hand: setting up json's encoder for each message would take a tenth of a rank's share of a restart."""

_BIND_S = 5.0
_BIND_RETRY_S = 0.01


class Round(NamedTuple):
    """The start of an iteration: the ranks that take no part in it, and what ended the one before.

    `step` is the highest that any rank has reported; None: none. `keys` are those with which ranks entered.
    """

    without: FrozenSet[int]
    step: Optional[int]
    fault: Optional[Fault]
    keys: Dict[int, str]


def address(limits: Limits, call: int, store_port: Optional[int] = None) -> Tuple[Address, bool]:
    """Return where the store of this job is, and whether the agent serves it; port 0: `launcher_store` has it.

    `store_port` is used unless an agent serves it or the environment names a port. Raises KeyError where
    nothing names one.
    """
    key, master_port = os.environ.get(KEY_VARIABLE, ""), os.environ.get("MASTER_PORT", "")
    agents = port_served_at(os.environ.get(STORE_VARIABLE, ""), master_port)
    port = agents or int(os.environ.get(PORT_VARIABLE) or store_port or _usual_port())
    return Address(os.environ["MASTER_ADDR"], port, key, limits.heartbeat_s, call), agents is not None


def _usual_port() -> int:
    return 0 if launcher_store.is_there() else int(os.environ["MASTER_PORT"]) + 1


class Session:
    """A rank's part in one call; `close` it at the end."""

    def __init__(
        self,
        rank: int,
        size: int,
        limits: Limits,
        abort: Callable[[int], None],
        *,
        call: int,
        store_port: Optional[int] = None,
    ) -> None:
        """Rank 0 starts the store, unless the agent hosts it. Raises OSError, StoreLostError.

        `abort` is the watch's; `call` is the number of the call, the same in all ranks.
        """
        self.rank, self.size, self.limits = rank, size, limits
        self.address, is_served = address(limits, call, store_port)
        self.progress = Progress()
        if not is_served:
            self.address = _with_store(self.address, rank, limits.barrier_s)
        self._control = Connection(self.address, limits.barrier_s)
        self._alert = Connection(self.address, limits.barrier_s)
        self._alert.listen(rank)
        self.interrupter = Interrupter(self._alert.socket)
        self._killer = Killer(limits.grace_s) if limits.hard_s is not None else None
        self._watch = Watch(
            rank,
            self._alert,
            self.interrupter,
            self.progress,
            self._killer,
            soft_s=limits.soft_s,
            hard_s=limits.hard_s,
            abort=abort,
        )

    def enter(self, iteration: int, without: Collection[int], key: Optional[str] = None) -> Round:
        """Wait for all other living ranks; raises RestartAbort, ExcludedError, StoreLostError.

        `without` are ranks that an earlier call has lost; `key` is sent to all others.
        """
        further = "" if key is None else ',"key":' + json.dumps(key)
        step = "null" if self.progress.step is None else "%d" % self.progress.step
        text = _ENTER % (self.rank, self.size, iteration, step, list(without), self.limits.barrier_s, further)
        self._control.send_frame(frames.framed(text.encode("ascii")))
        answer = _checked(self._control.receive())
        fault = answer["fault"]
        keys = {int(rank): str(each) for rank, each in answer.get("keys", {}).items()}
        return Round(
            frozenset(answer["without"]), answer["step"], None if fault is None else Fault(**fault), keys
        )

    def announce(self, iteration: int, kind: str, text: str) -> None:
        """Tell the others that this rank has failed in that iteration; only the first report of one counts."""
        self._control.send(op="fault", iteration=iteration, rank=self.rank, kind=kind, text=text)

    def wait_for_end(self, iteration: int, active: Optional[int]) -> bool:
        """Wait until all have completed; False: another has failed. Raises as `enter`.

        `active` is how many ranks run, of which this one has completed; None: this one is in reserve.
        """
        fields: Dict[str, Any] = {"rank": self.rank, "iteration": iteration}
        if active is None:
            answer = self._ask(op="reserve", **fields)
        else:
            answer = self._ask(op="done", active=active, completion_s=self.limits.completion_s, **fields)
        return bool(answer["ev"] == "complete")

    def give_up(self, why: str) -> None:
        """Make all ranks give up. The store may have gone already."""
        with contextlib.suppress(StoreLostError):
            self._control.send(op="give_up", why=why)

    def close(self) -> None:
        """Close everything; to the others this rank is lost, unless the call is over."""
        if self._killer is not None:
            self._killer.close()
        self._watch.stop()
        self.interrupter.close()
        self._control.close()
        self._alert.close()

    def _ask(self, **message: Any) -> Dict[str, Any]:
        return _checked(self._control.ask(**message))


def _checked(answer: Dict[str, Any]) -> Dict[str, Any]:
    if answer["ev"] == "over":
        raise (ExcludedError if answer["excluded"] else RestartAbort)(answer["why"])
    return answer


_stores: List[Any] = []
"""The stores that this process has started; they end by themselves and have to be reaped."""


def _with_store(where: Address, rank: int, timeout_s: float) -> Address:
    """Return the address of the store that rank 0 starts; in rank 0, start it first."""
    if where.port:
        if rank == 0:
            _start_store(where)
        return where
    try:
        store = launcher_store.LauncherStore(where.call, timeout_s)
        if rank == 0:
            where = where._replace(port=_start_store(where))
            store.tell(where.port)
        else:
            where = where._replace(port=store.port())
    except RuntimeError as exc:  # torch's errors of stores are
        raise StoreLostError(f"the launcher's store does not say where rank 0 listens: {exc}") from exc
    return where


def _start_store(where: Address) -> int:
    """Start the store and return its port."""
    _stores[:] = [store for store in _stores if store.poll() is None]
    deadline_s = time.monotonic() + _BIND_S
    while True:
        try:
            listening = server.listener(where.host, where.port, where.heartbeat_s)
        except OSError as exc:  # the previous call's store may still be about to end
            if exc.errno != errno.EADDRINUSE or time.monotonic() > deadline_s:
                raise
            time.sleep(_BIND_RETRY_S)
        else:
            port: int = listening.getsockname()[1]
            _stores.append(server.start(listening, where.call))
            return port
