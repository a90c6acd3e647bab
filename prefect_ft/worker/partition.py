"""Partition detection: whether a worker can reach no peer that shows that it is still wanted.

Its ranks may then have been started elsewhere, and must not go on. Owns the probes and the timing; the agent acts.
An orchestrator's absence alone is no partition as long as any other target answers.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import selectors
import socket
from typing import Callable, List, Optional, Sequence, Set, Tuple

from prefect_ft.worker.loop import Loop, now_s

LOOKS = 4
"""How many probes are made within the timeout."""

Target = Tuple[str, int]


class Silence:
    """How long no peer has been heard from; all times are seconds of one clock."""

    def __init__(self, timeout_s: float, now: float) -> None:
        self._timeout_s = timeout_s
        self._heard_at = now
        self._can_hear = False

    def hear(self, now: float) -> None:
        """Note that an orchestrator is attached."""
        self._heard_at = now

    def hear_answer(self, now: float) -> None:
        """Note that a probe was answered: silence now means something."""
        self._heard_at, self._can_hear = now, True

    def left_s(self, now: float) -> float:
        """Return the time until the silence has lasted too long."""
        return self._heard_at + self._timeout_s - now

    def is_cut(self, now: float) -> bool:
        """Whether it has; never so if no probe was ever answered: a firewall may block them all."""
        return self._can_hear and self.left_s(now) <= 0


class Partition:
    """Watches while an attempt runs; `on_cut(seconds)` is called once for each attempt that is cut off too long."""

    def __init__(
        self,
        loop: Loop,
        timeout_s: float,
        api: Sequence[Tuple[str, int]],
        port: Optional[int],
        *,
        is_attached: Callable[[], bool],
        is_idle: Callable[[], bool],
        on_cut: Callable[[float], None],
    ) -> None:
        """`api` are addresses of the cluster's API; other agents listen at `port`; None: each at its own."""
        self._loop = loop
        self._timeout_s = timeout_s
        self._api: List[Target] = [*((host, at) for host, at in api), *_own_api()]
        self._port = port
        self._is_attached, self._is_idle, self._on_cut = is_attached, is_idle, on_cut
        self._targets: List[Target] = []
        self._asked: Set[socket.socket] = set()
        self._silence: Optional[Silence] = None

    def begin(self, peers: Sequence[str]) -> None:
        """Watch over an attempt from now on; `peers` are hosts of other workers."""
        self._end()
        port = self._port
        self._targets = [*self._api, *((host, port) for host in peers if port is not None)]
        self._silence = Silence(self._timeout_s, now_s())
        self._look()

    def _end(self) -> None:
        self._loop.drop("partition")
        self._silence = None
        for connection in list(self._asked):
            self._close(connection)

    def _look(self) -> None:
        assert self._silence is not None
        now = now_s()
        if self._is_idle():
            self._end()
            return
        if self._is_attached():
            self._silence.hear(now)
        if self._silence.is_cut(now):
            self._end()
            self._on_cut(self._timeout_s)
            return
        self._ask()
        left_s = self._silence.left_s(now)
        every_s = self._timeout_s / LOOKS
        self._loop.after("partition", min(every_s, left_s) if left_s > 0 else every_s, self._look)

    def _ask(self) -> None:
        """Probe every target; probes of the last round that are still unanswered are given up."""
        for waiting in list(self._asked):
            self._close(waiting)
        for target in self._targets:
            connection = _connecting(target)
            if connection is not None:
                self._asked.add(connection)
                answered = functools.partial(self._answered, connection)
                self._loop.watch(connection, answered, selectors.EVENT_WRITE)

    def _answered(self, connection: socket.socket, _: int) -> None:
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0 and self._silence is not None:
            self._silence.hear_answer(now_s())
        self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        self._asked.discard(connection)
        self._loop.forget(connection)
        connection.close()


def _own_api() -> List[Target]:
    """Return the address of the cluster's API that pods are given."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return [(host, int(port))] if host and port.isdigit() else []


def _connecting(target: Target) -> Optional[socket.socket]:
    """Begin to connect; None where that fails. Hosts are addresses: no name is looked up."""
    connection = socket.socket(socket.AF_INET6 if ":" in target[0] else socket.AF_INET, socket.SOCK_STREAM)
    connection.setblocking(False)
    with contextlib.suppress(OSError):
        if connection.connect_ex(target) in (0, errno.EINPROGRESS):
            return connection
    connection.close()
    return None
