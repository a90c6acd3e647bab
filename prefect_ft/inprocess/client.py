"""A rank's connections to the store: one question at a time, and answers that are waited for.

Owns the sockets, which the rank's children do not inherit: otherwise a rank's end would go unnoticed.
"""

from __future__ import annotations

import os
import socket
import time
import weakref
from typing import Any, Dict, List, NamedTuple, Optional

from prefect_ft.inprocess.errors import StaleError, StoreLostError
from prefect_ft.worker import frames
from prefect_ft.worker.coordination import ALERT, proof, tune

RETRY_S = 0.02
"""The pause between attempts to reach a store that has not started yet."""


class Address(NamedTuple):
    """Where the store is, the key to it, and the number of the call."""

    host: str
    port: int
    key: str
    heartbeat_s: float
    call: int


class Connection:
    """One connection; `timeout_s` bounds how long the store may take to be there."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self._reader = frames.FrameReader()
        self._messages: List[Dict[str, Any]] = []
        self.socket = _connected(address, time.monotonic() + timeout_s, self)
        _connections.add(self)

    def send(self, **message: Any) -> None:
        """Send a message without an answer; raises StoreLostError."""
        self.send_frame(frames.encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Send an encoded message; otherwise as `send`."""
        try:
            self.socket.sendall(frame)
        except OSError as exc:
            raise StoreLostError(f"the store has gone: {exc}") from exc

    def ask(self, timeout_s: Optional[float] = None, **message: Any) -> Dict[str, Any]:
        """Send a message and wait for the answer; raises StoreLostError, TimeoutError.

        After a TimeoutError the connection is unusable.
        """
        self.send(**message)
        return self.receive(timeout_s)

    def receive(self, timeout_s: Optional[float] = None) -> Dict[str, Any]:
        """Wait for the next message; None waits without limit. Raises as `ask`."""
        if self.socket.gettimeout() != timeout_s:
            self.socket.settimeout(timeout_s)
        while not self._messages:
            try:
                data = self.socket.recv(1 << 16)
            except socket.timeout:  # not TimeoutError before 3.10
                raise TimeoutError(f"nothing came in {timeout_s:g} s") from None
            except OSError as exc:
                raise StoreLostError(f"the store has gone: {exc}") from exc
            if not data:
                raise StoreLostError("the store has gone")
            self._messages.extend(self._reader.feed(data))
        return self._messages.pop(0)

    def listen(self, rank: int) -> None:
        """Receive only alerts from now on, and wait until the store confirms; raises StoreLostError."""
        self.send(op="listen", rank=rank)
        self.socket.settimeout(None)
        self.receive_alert()

    def receive_alert(self) -> int:
        """Wait for the next alert: the iteration that has ended. Raises StoreLostError."""
        try:
            data = self.socket.recv(ALERT.size, socket.MSG_WAITALL)
        except OSError as exc:
            raise StoreLostError(f"the store has gone: {exc}") from exc
        if len(data) < ALERT.size:
            raise StoreLostError("the store has gone")
        iteration: int = ALERT.unpack(data)[0]
        return iteration

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.socket.close()


_connections: "weakref.WeakSet[Connection]" = weakref.WeakSet()


def _forget_in_child() -> None:
    for connection in list(_connections):
        connection.close()


os.register_at_fork(after_in_child=_forget_in_child)


def _connected(address: Address, deadline_s: float, connection: Connection) -> socket.socket:
    while True:
        try:
            return _try(address, deadline_s, connection)
        except (OSError, StoreLostError) as exc:
            if time.monotonic() > deadline_s:
                raise StoreLostError(f"no store at {address.host}:{address.port}: {exc}") from exc
            time.sleep(RETRY_S)


def _try(address: Address, deadline_s: float, connection: Connection) -> socket.socket:
    left_s = max(RETRY_S, deadline_s - time.monotonic())
    found = socket.create_connection((address.host, address.port), timeout=left_s)
    try:
        if found.getsockname() == found.getpeername():  # a connection to itself, from a free local port
            raise ConnectionRefusedError("the store is not listening")
        tune(found, address.heartbeat_s)
        connection.socket = found
        nonce = connection.receive(left_s)["nonce"]
        connection.send(proof=proof(nonce, address.key), call=address.call)
    except BaseException:
        found.close()
        raise
    return found


class Store:
    """Keys that all ranks of an iteration share. They end with it, and so does every wait for one.

    Everything raises StaleError when the iteration has ended, StoreLostError when the store has gone.
    """

    def __init__(self, address: Address, iteration: int, timeout_s: float) -> None:
        """`timeout_s` is how long `get`, `wait` and `barrier` wait unless a call says otherwise."""
        self.timeout_s = timeout_s
        self._address, self._iteration = address, iteration
        self._connection: Optional[Connection] = None

    def set(self, key: str, value: str) -> None:
        """Set a key; every wait for it returns."""
        self._ask("set", [key], value=value)

    def get(self, key: str, timeout_s: Optional[float] = None) -> str:
        """Wait for a key and return its value; raises TimeoutError."""
        return self.wait([key], timeout_s)[0]

    def wait(self, keys: List[str], timeout_s: Optional[float] = None) -> List[str]:
        """Wait until all keys are set and return their values; raises TimeoutError."""
        values: List[str] = self._ask("get", keys, timeout_s=timeout_s or self.timeout_s)["values"]
        return values

    def add(self, key: str, amount: int) -> int:
        """Add to the number that a key holds, 0 at first; return the sum."""
        return int(self._ask("add", [key], value=str(amount))["value"])

    def swap(self, key: str, expected: str, value: str) -> str:
        """Set a key if it holds `expected` (or nothing, and that is empty); return what it holds now."""
        return str(self._ask("swap", [key], value=value, expected=expected)["value"])

    def delete(self, key: str) -> bool:
        """Delete a key; return whether it was there."""
        return bool(self._ask("delete", [key])["value"] == "1")

    def count(self, keys: List[str]) -> int:
        """Return how many of these keys are set."""
        return int(self._ask("count", keys)["value"])

    def barrier(self, name: str, size: int, timeout_s: Optional[float] = None) -> None:
        """Wait until `size` ranks have come to the barrier of that name, once; raises TimeoutError."""
        if self.add(f"{name}/came", 1) == size:
            self.set(f"{name}/open", "")
        else:
            self.get(f"{name}/open", timeout_s)

    def close(self) -> None:
        """Close the connection; the next use opens another. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(
        self, op: str, keys: List[str], timeout_s: Optional[float] = None, **fields: str
    ) -> Dict[str, Any]:
        if self._connection is None:
            self._connection = Connection(self._address, self.timeout_s)
        try:
            answer = self._connection.ask(timeout_s, op=op, keys=keys, iteration=self._iteration, **fields)
        except BaseException:  # an answer may still come, and would be taken for the next question's
            self.close()
            raise
        if answer["ev"] == "stale":
            raise StaleError(f"iteration {self._iteration} has ended")
        return answer
