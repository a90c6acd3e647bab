"""Where connections are accepted: those that are not authenticated yet (strangers) are kept few and short.

Owns listening sockets and the strangers among their connections. It never keeps the loop busy: where no
connection can be accepted, a stranger is dismissed, or the sockets are not watched for a while.
"""

from __future__ import annotations

import functools
import resource
import select
import socket
from typing import Callable, Dict, Generic, NamedTuple, Optional, Protocol, TypeVar

from prefect_ft.worker import descriptors
from prefect_ft.worker.loop import Loop, now_s

MAX_STRANGERS = 16
"""The most strangers; one more, and another is dismissed."""

STRANGER_TIMEOUT_S = 10.0
"""How long a connection may take to authenticate."""

RETRY_S = 1.0
"""How long to accept nothing where no descriptors are left, even after a stranger is dismissed."""


class Visitor(Protocol):
    """The owner of a connection."""

    def fileno(self) -> int:
        """Return the connection's descriptor."""

    def close(self) -> None:
        """Hang up without a report. Idempotent."""


MAX_CROWD = 1024
"""The most strangers at a port open to a network or to all users: the more there may be, the longer each can stay."""


def max_strangers(clients: int) -> int:
    """Return how many strangers there may be at such a port, where so many clients come at once.

    They get at most a quarter of all descriptors: the agent needs the others.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MAX_CROWD + clients, max(MAX_STRANGERS, hard // 4))


V = TypeVar("V", bound=Visitor)

Enter = Callable[[socket.socket], Optional[V]]
"""Makes a visitor of an accepted connection; None: it is refused, and closed."""


class _Stay(NamedTuple):
    host: str
    deadline_s: float


class Lobby(Generic[V]):
    """Accepts connections until it is shut. It dismisses strangers; all others are no longer its concern."""

    def __init__(
        self,
        loop: Loop,
        name: str,
        max_strangers: int = MAX_STRANGERS,
        on_dismissed: Callable[[V], None] = lambda _: None,
    ) -> None:
        """`name` names its timers: only one lobby of a name in a loop.

        `on_dismissed(visitor)` is called for each stranger that is dismissed.
        """
        self._loop = loop
        self._retry, self._silent = f"{name} opens", f"{name} strangers"
        self._most, self._on_dismissed = max_strangers, on_dismissed
        self._enters: Dict[socket.socket, Enter[V]] = {}
        self._strangers: Dict[V, _Stay] = {}
        """In the order in which they came."""
        self._by_host: Dict[str, Dict[V, None]] = {}

    def open(self, listener: socket.socket, enter: Enter[V]) -> None:
        """Accept connections there from now on; the lobby owns the socket."""
        listener.setblocking(False)
        self._enters[listener] = enter
        self._listen()

    def shut(self) -> None:
        """Close the listening sockets; strangers stay. Idempotent."""
        self._loop.drop(self._retry)
        while self._enters:
            listener, _ = self._enters.popitem()
            self._loop.forget(listener)
            listener.close()

    def close(self) -> None:
        """Shut, and dismiss all strangers. Idempotent."""
        self.shut()
        while self._strangers:
            self.dismiss(next(iter(self._strangers)))
        self._loop.drop(self._silent)

    def release(self, visitor: V) -> bool:
        """Take a visitor off the strangers: it was admitted, or has gone. Return whether it was one. Idempotent."""
        stay = self._strangers.pop(visitor, None)
        if stay is None:
            return False
        of_host = self._by_host[stay.host]
        del of_host[visitor]
        if not of_host:
            del self._by_host[stay.host]
        return True

    def dismiss(self, visitor: V) -> None:
        """Hang up on a stranger; an admitted visitor stays."""
        if self.release(visitor):
            visitor.close()
            self._on_dismissed(visitor)

    def _listen(self) -> None:
        for listener in self._enters:
            self._loop.watch(listener, functools.partial(self._accept, listener))

    def _accept(self, listener: socket.socket, _: int) -> None:
        try:
            connection, host = descriptors.accept(listener)
        except (BlockingIOError, ConnectionError):
            return  # the peer has closed it again
        except OSError:
            self._make_room()
            return
        visitor = self._enters[listener](connection)
        if visitor is None:
            connection.close()
            return
        if len(self._strangers) >= self._most:
            self._dismiss_one()
        self._strangers[visitor] = _Stay(host, now_s() + STRANGER_TIMEOUT_S)
        self._by_host.setdefault(host, {})[visitor] = None
        self._loop.after(self._silent, STRANGER_TIMEOUT_S, self._dismiss_silent)

    def _make_room(self) -> None:
        """Free one stranger's descriptor; where there is none, accept nothing for a while."""
        if self._strangers:
            self._dismiss_one()
            return
        for listener in self._enters:
            self._loop.forget(listener)
        self._loop.after(self._retry, RETRY_S, self._listen)

    def _dismiss_one(self) -> None:
        """Dismiss the oldest stranger of the host that has most, so that no other host's suffer for it.

        A connection with unread data is skipped: the data may be its key.
        """
        fullest: Dict[V, None] = max(self._by_host.values(), key=len)
        quiet = (visitor for visitor in fullest if not _has_spoken(visitor))
        self.dismiss(next(quiet, next(iter(fullest))))

    def _dismiss_silent(self) -> None:
        now = now_s()
        while self._strangers:
            visitor, stay = next(iter(self._strangers.items()))
            if stay.deadline_s > now:
                self._loop.after(self._silent, stay.deadline_s - now, self._dismiss_silent)
                return
            self.dismiss(visitor)


def _has_spoken(visitor: Visitor) -> bool:
    number = visitor.fileno()
    if number < 0:
        return False  # closed, but not released yet
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(0))
