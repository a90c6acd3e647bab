"""The store of in-process restarts: connections of ranks, their authentication, and the calls they take part in.

Owns its listener and its connections. Messages are handled by coordinators, one for each call of a wrapped
function. Nothing here waits; everything happens in the loop of its host: an agent, or a process of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from prefect_ft.worker import frames
from prefect_ft.worker.coordinator import Coordinator, Message
from prefect_ft.worker.lobby import MAX_STRANGERS, Lobby
from prefect_ft.worker.loop import Loop, now_s
from prefect_ft.worker.peer import Peer

KEY_VARIABLE = "PREFECT_FT_INPROCESS_KEY"
"""The secret that ranks and store share; where it is not set, anyone who reaches the port is admitted."""

STORE_VARIABLE = "PREFECT_FT_INPROCESS_STORE"
"""The agent's store, as `served_at` writes it; it serves only the ranks that meet at that port."""

ALERT = struct.Struct(">q")
"""The only message on the connection on which a rank listens: the number of the iteration that has ended.

It is read in the main thread's signal handler, in every rank at once, so it is not JSON.
"""

BACKLOG = 4096
CONNECTIONS = 2
"""Of each rank."""

HEARTBEAT_S = 30.0
"""The default time after which a machine that does not answer counts as lost."""

_DEADLINE, _LEFT = "in-process deadline", "in-process left"


class Standing(NamedTuple):
    """Ranks whose end does not end the others: all `inside` a call, which continues without lost ranks.

    `excused` are lost ranks that a call continues without: they did not end it.
    """

    inside: Tuple[int, ...] = ()
    excused: Tuple[int, ...] = ()


def served_at(master_port: str, port: Optional[int]) -> str:
    """Return the address at which the agent serves the ranks that meet at `master_port`.

    Where the agent's ranks are launchers, they give their own ranks another port, which the agent does not serve.
    """
    return f"{master_port}:{port}"


def port_served_at(address: str, master_port: str) -> Optional[int]:
    """Return the port of the agent's store for ranks that meet at `master_port`; None: it has none for them."""
    theirs, _, port = address.partition(":")
    return int(port) if theirs == master_port and port.isdigit() else None


def proof(nonce: str, key: str) -> str:
    """Return a proof that its sender knows the key, without revealing it."""
    return hmac.new(key.encode(), nonce.encode(), hashlib.sha256).hexdigest()


def size_of(env: Mapping[str, str]) -> int:
    """Return how many ranks there are; 0 where the environment does not say."""
    size = env.get("WORLD_SIZE", "")
    return int(size) if size.isdigit() else 0


def tune(connection: socket.socket, heartbeat_s: float) -> None:
    """Send without delay, and have the kernel detect within `heartbeat_s` that the other machine has gone."""
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


def _send(peers: Iterable[Peer], message: Message) -> None:
    _send_bytes(peers, frames.encode(message))


def _alert(peers: Iterable[Peer], iteration: int) -> None:
    _send_bytes(peers, ALERT.pack(iteration))


def _send_bytes(peers: Iterable[Peer], data: bytes) -> None:
    for peer in peers:
        peer.send_bytes(data)


class _Call:
    """One call of a wrapped function, and the connections of those that take part in it."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.peers: Dict[Peer, None] = {}


class Coordination:
    """Serves behind a listening socket. Calls have numbers, which every rank counts for itself."""

    def __init__(
        self,
        listening: socket.socket,
        key: str,
        loop: Loop,
        *,
        first_call: int = 0,
        on_change: Callable[[], None] = lambda: None,
        max_strangers: int = MAX_STRANGERS,
    ) -> None:
        """Calls below `first_call` are over. `on_change()` is called when `standing` has changed."""
        self._key, self._loop = key, loop
        self._began_at = self._first_call = first_call
        self._on_change = on_change
        self._nonces: Dict[Peer, str] = {}
        self._call_of: Dict[Peer, int] = {}
        self._calls: Dict[int, _Call] = {}
        self._excused: Dict[int, None] = {}
        self._have_left: List[Peer] = []
        self._last_seen: Tuple[object, ...] = ()
        self._last_standing = Standing()
        self._due_s: Optional[float] = None
        """When the timer of the calls' deadlines is due; None: it is not set."""
        self._lobby: Lobby[Peer] = Lobby(loop, "in-process", max_strangers, self._forget_nonce)
        self._lobby.open(listening, self._enter)

    @property
    def is_used(self) -> bool:
        """Whether any rank takes part in a call."""
        return bool(self._call_of)

    @property
    def has_ended_one(self) -> bool:
        """Whether a call served here is over."""
        return self._first_call > self._began_at

    @property
    def standing(self) -> Standing:
        """Return the ranks whose end does not end the others."""
        inside = {rank for call in self._calls.values() for rank in call.coordinator.bound_ranks}
        return Standing(tuple(sorted(inside)), tuple(sorted(self._excused)))

    def stop_listening(self) -> None:
        """Close the listener; connections stay. Idempotent."""
        self._lobby.shut()

    def close(self) -> None:
        """Hang up on all. Idempotent."""
        self._lobby.close()
        for peer in self._call_of:
            peer.close()
        for timer in (_DEADLINE, _LEFT):
            self._loop.drop(timer)

    # -- connections ------------------------------------------------------------------------------

    def _enter(self, connection: socket.socket) -> Peer:
        peer = Peer(connection, self._loop, self._hear, self._left, lambda: None)
        nonce = self._nonces[peer] = secrets.token_hex(16)
        peer.send({"ev": "challenge", "nonce": nonce})
        return peer

    def _forget_nonce(self, peer: Peer) -> None:
        self._nonces.pop(peer, None)

    def _hear(self, peer: Peer, message: Message) -> None:
        try:
            if peer in self._nonces:
                self._admit(peer, message)
            else:
                self._calls[self._call_of[peer]].coordinator.hear(peer, message, now_s())
        except (KeyError, TypeError, ValueError, IndexError):
            peer.close()
            self._left(peer)
        self._after_change()

    def _admit(self, peer: Peer, message: Message) -> None:
        expected = proof(self._nonces.pop(peer), self._key)
        if not hmac.compare_digest(expected, str(message["proof"])):
            raise ValueError("a stranger")
        self._lobby.release(peer)
        number = int(message["call"])
        peer.trust()
        self._call_of[peer] = number
        if number not in self._calls:
            self._calls[number] = _Call(
                Coordinator(
                    send=_send,
                    alert=_alert,
                    drop=self._drop,
                    is_over=number < self._first_call,
                )
            )
        self._calls[number].peers[peer] = None

    def _left(self, peer: Peer) -> None:
        """Defer the loss: it may be noticed in the middle of a send to all."""
        self._have_left.append(peer)
        self._loop.after(_LEFT, 0.0, self._bury)

    def _bury(self) -> None:
        while self._have_left:
            peer = self._have_left.pop()
            self._forget_nonce(peer)
            self._lobby.release(peer)
            number = self._call_of.get(peer)
            if number is not None:
                self._forget(peer)
                self._calls[number].coordinator.left(peer, now_s())
        self._after_change()

    def _drop(self, peer: Peer) -> None:
        self._forget(peer)
        peer.close()

    def _forget(self, peer: Peer) -> None:
        number = self._call_of.pop(peer, None)
        if number is not None:
            del self._calls[number].peers[peer]

    # -- calls ------------------------------------------------------------------------------------

    def _after_change(self) -> None:
        seen = tuple((number, call.coordinator.stage, not call.peers) for number, call in self._calls.items())
        if seen != self._last_seen:
            self._last_seen = seen
            self._settle()
            if (standing := self.standing) != self._last_standing:
                self._last_standing = standing
                self._on_change()
        deadlines_s = [call.coordinator.deadline_s for call in self._calls.values()]
        self._have_expire(min((each for each in deadlines_s if each is not None), default=None))

    def _have_expire(self, due_s: Optional[float]) -> None:
        """Have `_expire` called at that time; None: not at all."""
        if due_s != self._due_s:
            self._due_s = due_s
            self._loop.drop(_DEADLINE)
            if due_s is not None:
                self._loop.after(_DEADLINE, max(0.0, due_s - now_s()), self._expire)

    def _settle(self) -> None:
        """Note calls that are over; forget those without connections."""
        for number, call in list(self._calls.items()):
            self._excused.update(dict.fromkeys(call.coordinator.excused))
            if call.coordinator.over is not None:
                self._first_call = max(self._first_call, number + 1)
                if not call.peers:
                    del self._calls[number]

    def _expire(self) -> None:
        self._due_s, now = None, now_s()
        for call in list(self._calls.values()):
            deadline_s = call.coordinator.deadline_s
            if deadline_s is not None and deadline_s <= now:
                call.coordinator.expire(now)
        self._after_change()
