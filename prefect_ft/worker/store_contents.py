"""What the rendezvous store holds: keys, queues, barriers, and which clients wait for them.

No connections and no bytes of the protocol: those are the store's own (`store.py`).
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, List, Optional, Protocol, Set, Tuple


class ForeignError(Exception):
    """The data is not of this protocol, or too large for it."""


class Waiting(Protocol):
    """A client that waits for keys, or at a barrier."""

    def has_come(self, key: bytes) -> None:
        """Note that a key is there."""

    def resume(self) -> None:
        """Wait no longer: what was waited for has come."""


class Contents:
    """Keys, queues and the clients that wait for them. Methods are named as in torch's clients."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._values: Dict[bytes, bytes] = {}
        self._queues: Dict[bytes, Deque[bytes]] = {}
        self._waiting: Dict[bytes, List[Waiting]] = {}
        """By key, the clients that wait for it, in the order in which they came."""
        self._barriers: Dict[bytes, List[Tuple[Waiting, int]]] = {}
        """By key, the clients that wait there until enough have come."""

    def set(self, key: bytes, value: bytes) -> None:
        before = self._values.get(key)
        self.size_bytes += len(value) - len(before) if before is not None else len(key) + len(value)
        self._values[key] = value
        for client in self._waiting.pop(key, ()):
            client.has_come(key)

    def get(self, key: bytes) -> bytes:
        """Return a value; empty for a missing key: clients wait for it first."""
        return self._values.get(key, b"")

    def add(self, key: bytes, amount: int) -> int:
        try:
            total = int(self._values.get(key, b"0")) + amount
        except ValueError as exc:
            raise ForeignError("a number is to be added to a text") from exc
        self.set(key, b"%d" % total)
        return total

    def append(self, key: bytes, value: bytes) -> None:
        self.set(key, self.get(key) + value)

    def compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        """Set a value if it is as expected, or absent with nothing expected; return the value after that.

        For a key that is absent although a value was expected, that is the expected one.
        """
        current = self._values.get(key)
        if current == expected or (current is None and not expected):
            self.set(key, desired)
            return desired
        return expected if current is None else current

    def delete(self, key: bytes) -> int:
        value = self._values.pop(key, None)
        if value is None:
            return 0
        self.size_bytes -= len(key) + len(value)
        return 1

    def keys(self) -> List[bytes]:
        return list(self._values)

    def push(self, key: bytes, value: bytes) -> None:
        """Append a value to a queue; notify one of the clients that wait for it."""
        self._queues.setdefault(key, deque()).append(value)
        self.size_bytes += len(value)
        waiting = self._waiting.get(key)
        if waiting:
            waiting.pop(0).has_come(key)

    def pop(self, key: bytes) -> Tuple[int, Optional[bytes]]:
        """Take the first value out of a queue; return how many there were, and the value."""
        queue = self._queues.get(key)
        if not queue:
            return 0, None
        length, value = len(queue), queue.popleft()
        self.size_bytes -= len(value)
        return length, value

    def length(self, key: bytes) -> int:
        return len(self._queues.get(key, ()))

    def is_there(self, key: bytes) -> bool:
        return key in self._values or bool(self._queues.get(key))

    def await_keys(self, client: Waiting, keys: Set[bytes]) -> None:
        for key in keys:
            self._waiting.setdefault(key, []).append(client)

    def come(self, client: Waiting, key: bytes, size: int) -> None:
        """Count a client at a key; all resume once `size` have come."""
        count = self.add(key, 1)
        waiting = [*self._barriers.pop(key, ()), (client, size)]
        if late := [each for each in waiting if each[1] > count]:
            self._barriers[key] = late
        for each, wanted in waiting:
            if wanted <= count:
                each.resume()

    def forget(self, client: Waiting, keys: Set[bytes], barrier: Optional[bytes]) -> None:
        """Stop a client's waiting."""
        for key in keys:
            waiting = [each for each in self._waiting.get(key, ()) if each is not client]
            if waiting:
                self._waiting[key] = waiting
            else:
                self._waiting.pop(key, None)
        if barrier is not None:
            late = [each for each in self._barriers.get(barrier, ()) if each[0] is not client]
            if late:
                self._barriers[barrier] = late
            else:
                self._barriers.pop(barrier, None)
