"""The rendezvous store: what torch.distributed's TCPStore clients talk to, served by the agent itself.

Owns the wire protocol of torch's TCPStore, which is private to torch: `TORCH_VERSIONS` are those it was
tested with. One store serves one attempt and is thrown away with it. Nothing here waits; everything
happens in the agent's loop. A client that breaks the protocol is dropped.

Numbers are 8 bytes, little-endian, and texts have their length before them, unless stated otherwise. A
connection begins with VALIDATE (a magic number, 4 bytes), followed by questions and answers.
"""

from __future__ import annotations

import selectors
import socket
import struct
from typing import Callable, Dict, List, Optional, Set

from prefect_ft.worker.lobby import MAX_STRANGERS, Lobby
from prefect_ft.worker.loop import Loop
from prefect_ft.worker.store_contents import Contents, ForeignError

TORCH_VERSIONS = ("2.13",)
"""The releases of torch whose clients this was tested with."""

MAX_TEXT = 8 << 20
"""The longest key or value in bytes; torch's own server takes no more."""

MAX_KEYS = 128 << 10
"""The most keys in one question, as in torch's own server."""

MAX_STORED = 512 << 20
"""The most bytes of all keys and values: a client that stores more is dropped, so that the agent survives it."""

BACKLOG = 1024
"""Connections that the kernel keeps until they are taken."""

MAX_UNREAD = 64 << 20
"""How many bytes of answers a client may leave unread."""

_MAGIC = struct.pack("<I", 0x3C85F7CE)
_NUMBER = struct.Struct("<q")
_READY, _NOT_READY = b"\0", b"\1"
_GO_ON, _CANCELLED = b"\0", b"\1"
_VALIDATE = 0


class _MissingError(Exception):
    """More bytes are needed."""


class _Question:
    """What a client has sent, parsed from the left."""

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
        """Remove a key from those that this client waits for."""
        self._awaited.discard(key)
        if not self._awaited:
            self.resume()

    def resume(self) -> None:
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
"""Questions by their first byte."""


class StoreServer:
    """One attempt's store. `is_foreign`: a torch client used an unknown protocol.

    A client is admitted once it has greeted; torch's clients have no key to show.
    """

    def __init__(
        self,
        bound: socket.socket,
        loop: Loop,
        on_client: Callable[[int], None] = lambda _: None,
        *,
        max_strangers: int = MAX_STRANGERS,
    ) -> None:
        """Listen on a bound socket, which this store then owns; raises OSError.

        `on_client(count)` is called with how many have greeted so far.
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
        """Admit a client."""
        if self._lobby.release(client):
            self._clients.add(client)
            self._have_come += 1
            self._on_client(self._have_come)

    def drop(self, client: _Client, *, is_foreign: bool = False) -> None:
        """Drop a client; what it has stored stays."""
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
            return None  # the client has gone again
        return _Client(connection, self)
