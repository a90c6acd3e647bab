"""The orchestrator's side of node servers: one connection to each, with orders and their answers.

Independent of Slurm: it is given the address of a node server. The next order replaces a broken connection.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from prefect_ft.backends.direct import DirectWay, NoAnswerError
from prefect_ft.errors import BackendError
from prefect_ft.worker import frames
from prefect_ft.worker.keys import worker_key
from prefect_ft.worker.node import KEY_NAME

PROBE_S = 2.0
"""How long a node may take to accept a connection; a lost packet is sent again after one second."""

SILENT_S = 3.0
"""How long a node server counts as silent after a failed probe: several callers ask when a node is lost."""

ANSWER_TIMEOUT_S = 10.0
"""How long a node server may take for an order that it executes at once."""

END_TIMEOUT_S = 45.0
"""How long it may take to end agents, with everything below them."""


class NodeLink:
    """The connection to one node server. Thread-safe: one order at a time."""

    def __init__(
        self, way: DirectWay, system: str, host: str, port: int, *, run_id: str, key: str, name: str
    ) -> None:
        """`key` is the run's; `name` is that of the node servers' certificate."""
        self._way, self.system, self.host, self.port = way, system, host, port
        self._run_id, self._run_key, self._name = run_id, key, name
        self._key = worker_key(key, KEY_NAME)
        self._silent_until_s = float("-inf")
        self._probe_lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._reader = frames.FrameReader()
        self._number = 0
        self._lock = threading.Lock()

    def ask(self, op: str, timeout_s: float = ANSWER_TIMEOUT_S, **fields: Any) -> Mapping[str, Any]:
        """Send an order and return the answer.

        Raises OSError where no answer comes, BackendError where the node server refuses.
        """
        with self._lock:
            if time.monotonic() < self._silent_until_s:
                raise NoAnswerError(f"the node server of {self.system} did not answer just now")
            was_open = self._connection is not None
            try:
                return self._order(op, timeout_s, fields)
            except OSError:
                self._drop()
                if not was_open:
                    raise
            try:
                return self._order(op, timeout_s, fields)  # the connection may have been a dead one
            except OSError:
                self._drop()
                raise

    def answers(self) -> bool:
        """Whether the node server answers and is not shutting down."""
        return self.is_going() is False

    def is_going(self) -> bool | None:
        """Whether the node server was told to shut down; None: it does not answer, which is remembered for SILENT_S.

        Uses a connection of its own: on an open one, the wait for a node without power is much longer.
        """
        with self._probe_lock:
            if time.monotonic() < self._silent_until_s:
                return None
            probe = NodeLink(
                self._way,
                self.system,
                self.host,
                self.port,
                run_id=self._run_id,
                key=self._run_key,
                name=self._name,
            )
            try:
                return bool(probe._order("list", ANSWER_TIMEOUT_S, {}, PROBE_S).get("is_going"))
            except (OSError, BackendError):
                self._silent_until_s = time.monotonic() + SILENT_S
                return None
            finally:
                probe.close()

    def connect(self, worker: str, port: int) -> socket.socket:
        """Open a connection to the agent of a worker on this node; raises OSError.

        Where nothing answers, the node server counts as silent as well: it has the same address.
        """
        try:
            return self._way.connect(self.host, worker, port=port, within_s=PROBE_S)
        except NoAnswerError:
            self._silent_until_s = time.monotonic() + SILENT_S
            raise

    def close(self) -> None:
        """Close the connection. Idempotent."""
        with self._lock:
            self._drop()

    def _order(
        self, op: str, timeout_s: float, fields: Mapping[str, Any], connect_s: float | None = None
    ) -> Mapping[str, Any]:
        deadline = time.monotonic() + timeout_s
        if self._connection is None:
            self._connection = self._way.connect(self.host, self._name, port=self.port, within_s=connect_s)
            self._reader = frames.FrameReader()
            self._send(deadline, op="attach", version=frames.VERSION, run=self._run_id, key=self._key)
            answer = self._receive(deadline)
            if answer.get("ev") != "attached" or answer.get("node") != self.system:
                self._drop()
                why = answer.get("why") or f"it is that of {answer.get('node')}"
                raise BackendError(f"the node server of {self.system} refuses: {why}", system=self.system)
        self._number += 1
        self._send(deadline, op=op, id=self._number, **fields)
        while (answer := self._receive(deadline)).get("id") != self._number:
            pass  # a late answer to an earlier order
        if answer.get("ev") != "done":
            raise BackendError(f"{answer.get('why') or 'it does not say why'}", system=self.system)
        return answer

    def _send(self, deadline_s: float, **message: Any) -> None:
        assert self._connection is not None
        self._connection.settimeout(max(0.1, deadline_s - time.monotonic()))
        self._connection.sendall(frames.encode(message))

    def _receive(self, deadline_s: float) -> Mapping[str, Any]:
        assert self._connection is not None
        while True:
            for message in self._reader.feed(b""):
                return message
            self._connection.settimeout(max(0.1, deadline_s - time.monotonic()))
            data = self._connection.recv(1 << 16)
            if not data:
                raise ConnectionError(f"the node server of {self.system} has hung up")
            try:
                for message in self._reader.feed(data):
                    return message
            except frames.FrameError as exc:
                raise ConnectionError(str(exc)) from exc

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
