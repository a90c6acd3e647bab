"""Chooses how agents in pods are reached: directly, or through the cluster's API.

Owns the choice, and the open direct connections: it ends those to nodes that the cluster has lost.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from prefect_ft.plaintext import as_line

Way = Literal["direct", "api"]
Connect = Callable[[], socket.socket]

PATIENCE_S = 10.0
"""How long a starting agent's port may refuse connections before the API is asked whether it listens."""

LOOK_S = 1.0
"""How often to check whether the nodes of open connections are lost."""

_log = logging.getLogger(__name__)


class Reach:
    """Finds the route to all agents, once, with the first agent that is reached."""

    def __init__(self, wanted: Literal["auto", "direct", "api"]) -> None:
        self._way: Way | None = None if wanted == "auto" else wanted
        self._lock = threading.Lock()

    def connect(self, directly: Connect, by_api: Connect) -> socket.socket:
        """Open a connection; raises OSError."""
        if self._way == "api":
            return by_api()
        try:
            connection = directly()
        except OSError as exc:
            if self._way == "direct":
                raise
            connection = by_api()
            self._choose("api", exc)
            return connection
        self._choose("direct")
        return connection

    def listens(self, directly: Connect, by_api: Callable[[], bool], waited_s: float) -> bool:
        """Whether a starting agent accepts connections by now; `waited_s` is how long it has been waited for."""
        if self._way == "api":
            return by_api()
        try:
            directly().close()
        except OSError as exc:
            may_begin = isinstance(exc, ConnectionRefusedError) and waited_s < PATIENCE_S
            if self._way == "direct" or may_begin or not by_api():
                return False
            self._choose("api", exc)
            return True
        self._choose("direct")
        return True

    def _choose(self, way: Way, why: OSError | None = None) -> None:
        with self._lock:
            if self._way is not None:
                return
            self._way = way
        if why is not None:
            _log.warning(
                "agents in pods cannot be reached at their own addresses (%s): using the cluster's API instead, which "
                "must stay available; set `reach: api` if that is intended",
                as_line(str(why)),
            )


class Guard:
    """Ends open connections to lost systems, though their peers may still be there."""

    def __init__(self, is_lost: Callable[[str], bool]) -> None:
        self._is_lost = is_lost
        self._open: weakref.WeakKeyDictionary[socket.socket, str] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._is_looking = False

    def watch(self, connection: socket.socket, system: str) -> socket.socket:
        """Watch over a connection to a system until it is closed; return it."""
        with self._lock:
            self._open[connection] = system
            if not self._is_looking:
                self._is_looking = True
                threading.Thread(target=self._look, name="prefect-ft-guard", daemon=True).start()
        return connection

    def _look(self) -> None:
        while held := self._held():
            lost = {system for system in {*held.values()} if self._is_lost(system)}
            for connection, system in held.items():
                if system in lost:
                    with suppress(
                        OSError
                    ):  # TLS's own shutdown would discard the state of a concurrent reader
                        socket.socket.shutdown(connection, socket.SHUT_RDWR)
            del held, connection
            time.sleep(LOOK_S)

    def _held(self) -> dict[socket.socket, str]:
        with self._lock:
            held = {each: system for each, system in self._open.items() if each.fileno() >= 0}
            self._is_looking = bool(held)
            return held
