"""The rendezvous store: what torch.distributed's TCPStore clients talk to, served by the agent itself.

Owns the wire protocol of torch's TCPStore, which is private to torch: `TORCH_VERSIONS` are those it was
tested with. One store serves one attempt and is thrown away with it. Nothing here waits; everything
happens in the agent's loop. A client that breaks the protocol is dropped.

Numbers are 8 bytes, little-endian, and texts have their length before them, if nothing else is said. A
connection begins with VALIDATE (a magic number, 4 bytes) and asks and is answered from then on.
"""

from __future__ import annotations

import selectors
import socket
import struct
from collections import deque
from typing import Callable, Deque, Dict, List, Optional, Set, Tuple

from prefect_ft.worker.lobby import MAX_STRANGERS, Lobby
from prefect_ft.worker.loop import Loop

TORCH_VERSIONS = ("2.13",)
"""The releases of torch whose clients this was tested with."""

MAX_TEXT = 8 << 20
"""Bytes of one key or value; torch's own server takes no more."""

MAX_KEYS = 128 << 10
"""Keys in one question, as in torch's own server."""

MAX_STORED = 512 << 20
"""Bytes of all keys and values: who wants more is dropped, so that the agent outlives it."""

BACKLOG = 1024
"""Connections that the kernel keeps until they are taken."""

MAX_UNREAD = 64 << 20
"""Bytes of answers that a client may leave unread."""

_MAGIC = struct.pack("<I", 0x3C85F7CE)
_NUMBER = struct.Struct("<q")
_READY, _NOT_READY = b"\0", b"\1"
_GO_ON, _CANCELLED = b"\0", b"\1"
_VALIDATE = 0


class ForeignError(Exception):
    """What came is not of this protocol, or too large for it."""


class _MissingError(Exception):
    """More bytes have to come first."""


class _Question:
    """What a client has sent, taken apart from the left."""

    def __init__(self, data: bytearray) -> None:
        self._data = data
        self.at = 0

    def take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self._data):
            raise _MissingError
        piece = bytes(self._data[self.at : end])
        self.at = end
        return piece

    def number(self) -> int:
        (number,) = _NUMBER.unpack(self.take(_NUMBER.size))
        return int(number)

    def count(self) -> int:
        return self._bounded(MAX_KEYS)

    def text(self) -> bytes:
        return self.take(self._bounded(MAX_TEXT))

    def texts(self) -> List[bytes]:
        return [self.text() for _ in range(self.count())]

    def _bounded(self, limit: int) -> int:
        number = self.number()
        if not 0 <= number <= limit:
            raise ForeignError(f"a length of {number}")
        return number


def _text(value: bytes) -> bytes:
    return _NUMBER.pack(len(value)) + value


class Contents:
    """Keys, queues and who waits for them. Methods are named as torch's clients name them."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._values: Dict[bytes, bytes] = {}
        self._queues: Dict[bytes, Deque[bytes]] = {}
        self._waiting: Dict[bytes, List[_Client]] = {}
        """By key, in the order in which they came."""
        self._barriers: Dict[bytes, List[Tuple[_Client, int]]] = {}
        """Who waits at a key until as many have come."""

    def set(self, key: bytes, value: bytes) -> None:
        before = self._values.get(key)
        self.size_bytes += len(value) - len(before) if before is not None else len(key) + len(value)
        self._values[key] = value
        for client in self._waiting.pop(key, ()):
            client.has_come(key)

    def get(self, key: bytes) -> bytes:
        """Return a value; of a key that is not there, nothing: clients wait for it first."""
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
        """Set a value if it is as expected, or absent with nothing expected; return what it is then.

        Of a key that is absent although something was expected, that is what was expected.
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
        """Put a value at the end of a queue; one of those who wait for it hears of it."""
        self._queues.setdefault(key, deque()).append(value)
        self.size_bytes += len(value)
        waiting = self._waiting.get(key)
        if waiting:
            waiting.pop(0).has_come(key)

    def pop(self, key: bytes) -> Tuple[int, Optional[bytes]]:
        """Take the first value out of a queue; with it, how many there were."""
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

    def await_keys(self, client: _Client, keys: Set[bytes]) -> None:
        for key in keys:
            self._waiting.setdefault(key, []).append(client)

    def come(self, client: _Client, key: bytes, size: int) -> None:
        """Count who comes to a key; all go on once as many have come as are to."""
        count = self.add(key, 1)
        waiting = [*self._barriers.pop(key, ()), (client, size)]
        if late := [each for each in waiting if each[1] > count]:
            self._barriers[key] = late
        for each, wanted in waiting:
            if wanted <= count:
                each.goes_on()

    def forget(self, client: _Client, keys: Set[bytes], barrier: Optional[bytes]) -> None:
        """Let a client wait no longer."""
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


class _Client:
    """One connection."""

    def __init__(self, connection: socket.socket, server: StoreServer) -> None:
        self._connection = connection
        self._server = server
        self._contents = server.contents
        self._in = bytearray()
        self._out = bytearray()
        self._awaited: Set[bytes] = set()
        self._barrier: Optional[bytes] = None
        self._is_valid = False
        self._is_congested = False
        self._is_open = True
        server.loop.watch(connection, self._ready)

    def fileno(self) -> int:
        return self._connection.fileno()

    def has_come(self, key: bytes) -> None:
        """Take a key off what this client waits for."""
        self._awaited.discard(key)
        if not self._awaited:
            self.goes_on()

    def goes_on(self) -> None:
        """Tell the client that what it waited for has come."""
        self._barrier = None
        self._out += _GO_ON
        self._ready(selectors.EVENT_WRITE)

    def close(self) -> None:
        """Hang up. Idempotent."""
        if self._is_open:
            self._is_open = False
            self._stop_waiting()
            self._server.loop.forget(self._connection)
            self._connection.close()

    def _stop_waiting(self) -> None:
        self._contents.forget(self, self._awaited, self._barrier)
        self._awaited, self._barrier = set(), None

    # -- the connection ---------------------------------------------------------------------------

    def _ready(self, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                self._read()
            if self._is_open:
                self._flush()
        except ForeignError:
            self._server.drop(self, is_foreign=self._is_valid)
        except OSError:
            self._server.drop(self)

    def _read(self) -> None:
        try:
            data = self._connection.recv(1 << 17)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError
        self._in += data
        before = self._contents.size_bytes
        try:
            while self._in and self._is_open:
                question = _Question(self._in)
                self._obey(question)
                del self._in[: question.at]
        except _MissingError:
            pass
        if len(self._in) > MAX_STORED or self._contents.size_bytes > max(MAX_STORED, before):
            raise ConnectionError

    def _obey(self, question: _Question) -> None:
        (kind,) = question.take(1)
        if not self._is_valid and kind != _VALIDATE:
            raise ForeignError("no greeting")
        call = _QUESTIONS.get(kind)
        if call is None:
            raise ForeignError(f"the question {kind}")
        call(self, question)

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: self._connection.send(self._out)]
        except BlockingIOError:
            if len(self._out) > MAX_UNREAD:
                raise ConnectionError from None
        if bool(self._out) != self._is_congested:
            self._is_congested = bool(self._out)
            write = selectors.EVENT_WRITE if self._is_congested else 0
            self._server.loop.watch(self._connection, self._ready, selectors.EVENT_READ | write)

    # -- questions: each takes what belongs to it before it changes anything ----------------------

    def _validate(self, question: _Question) -> None:
        if question.take(4) != _MAGIC:
            raise ForeignError("another magic number")
        self._is_valid = True
        self._server.admit(self)

    def _ping(self, question: _Question) -> None:
        self._out += question.take(4)

    def _set(self, question: _Question) -> None:
        self._contents.set(question.text(), question.text())

    def _compare_set(self, question: _Question) -> None:
        key, expected, desired = question.text(), question.text(), question.text()
        self._out += _text(self._contents.compare_set(key, expected, desired))

    def _get(self, question: _Question) -> None:
        self._out += _text(self._contents.get(question.text()))

    def _add(self, question: _Question) -> None:
        key, amount = question.text(), question.number()
        self._out += _NUMBER.pack(self._contents.add(key, amount))

    def _check(self, question: _Question) -> None:
        keys = question.texts()
        is_ready = all(map(self._contents.is_there, keys))
        self._out += _READY if is_ready else _NOT_READY

    def _wait(self, question: _Question) -> None:
        keys = question.texts()
        self._stop_waiting()
        self._awaited = {key for key in keys if not self._contents.is_there(key)}
        if self._awaited:
            self._contents.await_keys(self, self._awaited)
        else:
            self._out += _GO_ON

    def _barrier_of(self, question: _Question) -> None:
        key, size = question.text(), question.number()
        self._barrier = key
        self._contents.come(self, key, size)

    def _cancel_wait(self, _: _Question) -> None:
        self._stop_waiting()
        self._out += _CANCELLED

    def _num_keys(self, _: _Question) -> None:
        self._out += _NUMBER.pack(len(self._contents.keys()))

    def _list_keys(self, _: _Question) -> None:
        keys = self._contents.keys()
        self._out += b"".join([_NUMBER.pack(len(keys)), *map(_text, keys)])

    def _delete_key(self, question: _Question) -> None:
        self._out += _NUMBER.pack(self._contents.delete(question.text()))

    def _append(self, question: _Question) -> None:
        self._contents.append(question.text(), question.text())

    def _multi_get(self, question: _Question) -> None:
        self._out += b"".join(_text(self._contents.get(key)) for key in question.texts())

    def _multi_set(self, question: _Question) -> None:
        for key, value in [(question.text(), question.text()) for _ in range(question.count())]:
            self._contents.set(key, value)

    def _queue_push(self, question: _Question) -> None:
        self._contents.push(question.text(), question.text())

    def _queue_pop(self, question: _Question) -> None:
        length, value = self._contents.pop(question.text())
        self._out += _NUMBER.pack(length) + (b"" if value is None else _text(value))

    def _queue_len(self, question: _Question) -> None:
        self._out += _NUMBER.pack(self._contents.length(question.text()))


_QUESTIONS: Dict[int, Callable[[_Client, _Question], None]] = {
    _VALIDATE: _Client._validate,
    1: _Client._set,
    2: _Client._compare_set,
    3: _Client._get,
    4: _Client._add,
    5: _Client._check,
    6: _Client._wait,
    7: _Client._num_keys,
    8: _Client._delete_key,
    9: _Client._append,
    10: _Client._multi_get,
    11: _Client._multi_set,
    12: _Client._cancel_wait,
    13: _Client._ping,
    14: _Client._queue_push,
    15: _Client._queue_pop,
    16: _Client._queue_len,
    17: _Client._list_keys,
    18: _Client._barrier_of,
}
"""What a question's first byte says."""


class StoreServer:
    """One attempt's store. `is_foreign`: a client of torch's spoke otherwise than those that are known.

    A client belongs here once it has greeted; torch's clients have no key that they could show.
    """

    def __init__(
        self,
        bound: socket.socket,
        loop: Loop,
        on_client: Callable[[int], None] = lambda _: None,
        *,
        max_strangers: int = MAX_STRANGERS,
    ) -> None:
        """Listen on a socket that is bound; raises OSError. The socket is this store's from then on.

        `on_client(count)`: so many have greeted by now.
        """
        self.contents = Contents()
        self._on_client, self._have_come = on_client, 0
        self.loop = loop
        self.is_foreign = False
        self._clients: Set[_Client] = set()
        self._lobby: Lobby[_Client] = Lobby(loop, "store", max_strangers)
        bound.listen(BACKLOG)
        self._lobby.open(bound, self._enter)

    def admit(self, client: _Client) -> None:
        """Let a client stay."""
        if self._lobby.release(client):
            self._clients.add(client)
            self._have_come += 1
            self._on_client(self._have_come)

    def drop(self, client: _Client, *, is_foreign: bool = False) -> None:
        """Have done with a client; what it has stored stays."""
        self.is_foreign = self.is_foreign or is_foreign
        self._lobby.release(client)
        self._clients.discard(client)
        client.close()

    def close(self) -> None:
        """Hang up on all, once."""
        self._lobby.close()
        while self._clients:
            self._clients.pop().close()

    def _enter(self, connection: socket.socket) -> Optional[_Client]:
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            return None  # it has gone again
        return _Client(connection, self)
