"""The store as a process of its own: it outlives every rank, the one that started it too.

Owns its listener and its connections; what is said there is the coordinator's. It ends when nobody is left
to serve, so that nothing has to stop it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import subprocess
import sys
from typing import Dict, List

from prefect_ft.inprocess.coordinator import Coordinator, Message
from prefect_ft.worker.loop import Loop, now_s
from prefect_ft.worker.peer import Peer

KEY_VARIABLE = "PREFECT_FT_INPROCESS_KEY"
"""The secret that ranks and store share; where it is not set, whoever reaches the port may speak."""

BACKLOG = 4096
NOBODY_CAME_S = 600.0
"""How long a store without any rank lives."""

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_START = """
import sys
sys.path.insert(0, sys.argv[1])
from prefect_ft.inprocess.server import main
main(int(sys.argv[2]))
"""


def proof(nonce: str, key: str) -> str:
    """Give what shows that its sender knows the key, without telling it."""
    return hmac.new(key.encode(), nonce.encode(), hashlib.sha256).hexdigest()


def listener(host: str, port: int, heartbeat_s: float) -> socket.socket:
    """Take the port; raises OSError where it is not free. What comes in by it inherits its options."""
    listening = socket.create_server((host, port), backlog=BACKLOG)
    tune(listening, heartbeat_s)
    return listening


def tune(connection: socket.socket, heartbeat_s: float) -> None:
    """Send at once, and have the kernel find out within `heartbeat_s` that the other machine has gone."""
    probe_s = max(1, round(heartbeat_s / 4))
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, probe_s),
        (socket.TCP_KEEPINTVL, probe_s),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, round(1000 * heartbeat_s)),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def start(listening: socket.socket) -> "subprocess.Popen[bytes]":
    """Start the store behind a listening socket, which is closed here. Connections wait until it is up."""
    with listening:
        number = listening.fileno()
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, _ROOT, str(number)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(number,),
            start_new_session=True,  # what is typed at a terminal ends the ranks, and they end it
        )


def main(descriptor: int) -> None:
    """Serve until nobody is left; the listener's descriptor is inherited."""
    with socket.socket(fileno=descriptor) as listening:
        Server(listening, os.environ.get(KEY_VARIABLE, "")).run()


class Server:
    """Connections of ranks, and the coordinator that they speak to."""

    def __init__(self, listening: socket.socket, key: str) -> None:
        listening.setblocking(False)
        self._listening, self._key = listening, key
        self._loop = Loop()
        self._nonces: Dict[Peer, str] = {}
        self._admitted: Dict[Peer, None] = {}
        self._have_left: List[Peer] = []
        self._has_served = False
        self._coordinator = Coordinator(send=lambda peer, message: peer.send(message), drop=self._drop)

    def run(self) -> None:
        """Serve until the last rank has gone."""
        self._loop.watch(self._listening, lambda _: self._accept())
        self._loop.after("nobody", NOBODY_CAME_S, self._give_up_waiting)
        while self._admitted or not self._has_served:
            self._loop.step()

    def _give_up_waiting(self) -> None:
        self._has_served = True

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return
        peer = Peer(connection, self._loop, self._hear, self._left, lambda: None)
        self._nonces[peer] = secrets.token_hex(16)
        peer.send({"ev": "challenge", "nonce": self._nonces[peer]})

    def _hear(self, peer: Peer, message: Message) -> None:
        try:
            if peer in self._nonces:
                self._admit(peer, message)
            else:
                self._coordinator.hear(peer, message, now_s())
        except (KeyError, TypeError, ValueError, IndexError):
            peer.close()
            self._left(peer)
        self._after_change()

    def _admit(self, peer: Peer, message: Message) -> None:
        expected = proof(self._nonces.pop(peer), self._key)
        if not hmac.compare_digest(expected, str(message["proof"])):
            raise ValueError("a stranger")
        peer.trust()
        self._admitted[peer] = None
        self._has_served = True

    def _left(self, peer: Peer) -> None:
        """Put it off: it may be found out while something is being sent to all."""
        self._have_left.append(peer)
        self._loop.after("left", 0.0, self._bury)

    def _bury(self) -> None:
        while self._have_left:
            peer = self._have_left.pop()
            self._nonces.pop(peer, None)
            self._admitted.pop(peer, None)
            self._coordinator.left(peer, now_s())
        self._after_change()

    def _drop(self, peer: Peer) -> None:
        self._admitted.pop(peer, None)
        peer.close()

    def _after_change(self) -> None:
        self._loop.drop("deadline")
        deadline_s = self._coordinator.deadline_s
        if deadline_s is not None:
            self._loop.after("deadline", max(0.0, deadline_s - now_s()), self._expire)
        # The next call of the wrapper wants the port.
        if self._coordinator.over is not None and self._listening.fileno() >= 0:
            self._loop.forget(self._listening)
            self._listening.close()

    def _expire(self) -> None:
        self._coordinator.expire(now_s())
        self._after_change()
