"""The rendezvous store, word by word: what torch's clients send, and what they are answered."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from threading import Thread

import pytest

from prefect_ft.worker.loop import Loop
from prefect_ft.worker.store import MAX_KEYS, MAX_TEXT, StoreServer

HELLO = b"\x00" + struct.pack("<I", 0x3C85F7CE)
GO_ON, CANCELLED = b"\x00", b"\x01"


def number(value: int) -> bytes:
    return struct.pack("<q", value)


def text(value: str) -> bytes:
    return number(len(value)) + value.encode()


def texts(*values: str) -> bytes:
    return number(len(values)) + b"".join(map(text, values))


(
    SET,
    CSET,
    GET,
    ADD,
    CHECK,
    WAIT,
    COUNT,
    DELETE,
    APPEND,
    MGET,
    MSET,
    CANCEL,
    PING,
    PUSH,
    POP,
    LEN,
    LIST,
    BARRIER,
) = (bytes([code]) for code in range(1, 19))


class Served:
    """A store whose loop runs in a thread; `close` ends both."""

    def __init__(self) -> None:
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        self.address = bound.getsockname()
        self._loop = Loop()
        self._hear, self._ring = socket.socketpair()
        self.server = StoreServer(bound, self._loop)
        self._going = True
        self._loop.watch(self._hear, lambda _: self._end())
        self._thread = Thread(target=self._serve)
        self._thread.start()
        self._clients: list[socket.socket] = []

    def _serve(self) -> None:
        while self._going:
            self._loop.step()
        self.server.close()

    def _end(self) -> None:
        self._going = False

    def client(self, *, greets: bool = True) -> socket.socket:
        client = socket.create_connection(self.address)
        client.settimeout(30)
        self._clients.append(client)
        if greets:
            client.sendall(HELLO)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._ring.send(b"x")
        self._thread.join()
        self._hear.close()
        self._ring.close()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


def hear(client: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (piece := client.recv(length - len(data))):
        data += piece
    return data


def ask(client: socket.socket, question: bytes, length: int) -> bytes:
    client.sendall(question)
    return hear(client, length)


def is_hung_up_on(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


TALKS = [
    pytest.param([(PING + b"abcd", b"abcd")], id="a-ping-comes-back"),
    pytest.param([(SET + text("k") + text("v"), b""), (GET + text("k"), text("v"))], id="what-is-set-is-got"),
    pytest.param([(GET + text("k"), text(""))], id="what-is-not-there-is-empty"),
    pytest.param(
        [
            (ADD + text("n") + number(5), number(5)),
            (ADD + text("n") + number(-7), number(-2)),
            (GET + text("n"), text("-2")),
        ],
        id="sums-are-kept-as-text",
    ),
    pytest.param(
        [(SET + text("k") + text(""), b""), (CHECK + texts("k"), b"\x00"), (CHECK + texts("k", "l"), b"\x01")],
        id="check-wants-all-keys",
    ),
    pytest.param(
        [
            (CSET + text("k") + text("old") + text("new"), text("old")),
            (CHECK + texts("k"), b"\x01"),
            (CSET + text("k") + text("") + text("one"), text("one")),
            (CSET + text("k") + text("other") + text("two"), text("one")),
            (CSET + text("k") + text("one") + text("two"), text("two")),
        ],
        id="compare-and-set",
    ),
    pytest.param(
        [(APPEND + text("k") + text("ab"), b""), (APPEND + text("k") + text("c"), b""), (GET + text("k"), text("abc"))],
        id="append",
    ),
    pytest.param(
        [
            (MSET + number(2) + text("a") + text("1") + text("b") + text("22"), b""),
            (MGET + texts("b", "a"), text("22") + text("1")),
            (COUNT, number(2)),
            (LIST, number(2) + text("a") + text("b")),
            (DELETE + text("a"), number(1)),
            (DELETE + text("a"), number(0)),
            (COUNT, number(1)),
        ],
        id="several-at-once",
    ),
    pytest.param(
        [
            (POP + text("q"), number(0)),
            (PUSH + text("q") + text("a"), b""),
            (PUSH + text("q") + text("b"), b""),
            (LEN + text("q"), number(2)),
            (CHECK + texts("q"), b"\x00"),
            (COUNT, number(0)),
            (POP + text("q"), number(2) + text("a")),
            (POP + text("q"), number(1) + text("b")),
            (LEN + text("q"), number(0)),
        ],
        id="queues-are-no-keys",
    ),
    pytest.param(
        [
            (SET + text("k") + text("v"), b""),
            (WAIT + texts("k"), GO_ON),
            (WAIT + texts("k", "l"), b""),
            (CANCEL, CANCELLED),
        ],
        id="a-wait-that-is-cancelled",
    ),
    pytest.param([(BARRIER + text("b") + number(1), GO_ON), (GET + text("b"), text("1"))], id="a-barrier-of-one"),
]  # fmt: skip


@pytest.mark.parametrize("talk", TALKS)
def test_questions_and_answers(talk: list[tuple[bytes, bytes]], served: Served) -> None:
    client = served.client()
    assert [ask(client, question, len(answer)) for question, answer in talk] == [answer for _, answer in talk]
    assert ask(client, PING + b"last", 4) == b"last", "nothing else has been said"


@pytest.mark.parametrize("talk", TALKS)
def test_it_does_not_matter_how_bytes_arrive(talk: list[tuple[bytes, bytes]], served: Served) -> None:
    client = served.client(greets=False)
    questions = HELLO + b"".join(question for question, _ in talk)
    for at in range(len(questions)):
        client.sendall(questions[at : at + 1])
    answers = b"".join(answer for _, answer in talk)
    assert hear(client, len(answers)) == answers


def test_a_wait_ends_when_the_last_key_has_come(served: Served) -> None:
    waiting, other = served.client(), served.client()
    waiting.sendall(WAIT + texts("a", "b", "a"))
    ask(waiting, b"", 0)
    other.sendall(SET + text("a") + text("1"))
    assert ask(other, ADD + text("b") + number(3), 8) == number(3)
    assert hear(waiting, 1) == GO_ON
    assert ask(waiting, PING + b"abcd", 4) == b"abcd"


def test_a_value_wakes_one_of_those_who_wait_for_a_queue(served: Served) -> None:
    first, second, other = served.client(), served.client(), served.client()
    for client in (first, second):
        assert ask(client, PING + b"abcd" + WAIT + texts("q"), 4) == b"abcd"
    other.sendall(PUSH + text("q") + text("x"))
    assert hear(first, 1) == GO_ON
    assert ask(first, POP + text("q"), 17) == number(1) + text("x")
    other.sendall(PUSH + text("q") + text("y"))
    assert hear(second, 1) == GO_ON


def test_a_barrier_lets_all_go_on_together(served: Served) -> None:
    clients = [served.client() for _ in range(3)]
    for client in clients[:2]:
        assert ask(client, PING + b"abcd" + BARRIER + text("b") + number(3), 4) == b"abcd"
    clients[2].sendall(BARRIER + text("b") + number(3))
    assert [hear(client, 1) for client in clients] == [GO_ON] * 3


@pytest.mark.parametrize(
    "question", [WAIT + texts("k"), BARRIER + text("k") + number(9)], ids=["wait", "barrier"]
)
def test_a_client_that_dies_while_it_waits_is_forgotten(question: bytes, served: Served) -> None:
    dying, other = served.client(), served.client()
    assert ask(dying, PING + b"abcd" + question, 4) == b"abcd"
    dying.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    dying.close()
    other.sendall(SET + text("k") + text("9"))
    assert ask(other, ADD + text("k") + number(1), 8) == number(10)
    assert ask(other, WAIT + texts("k"), 1) == GO_ON


GARBAGE = [
    pytest.param(b"GET / HTTP/1.1\r\n\r\n", False, id="no-greeting"),
    pytest.param(b"\x00abcd", False, id="another-magic-number"),
    pytest.param(HELLO + b"\x13", True, id="a-question-that-is-not-known"),
    pytest.param(HELLO + GET + number(MAX_TEXT + 1), True, id="a-key-that-is-too-long"),
    pytest.param(HELLO + GET + number(-1), True, id="a-length-below-zero"),
    pytest.param(HELLO + WAIT + number(MAX_KEYS + 1), True, id="too-many-keys"),
    pytest.param(HELLO + SET + text("k") + text("x") + ADD + text("k") + number(1), True, id="a-sum-with-a-text"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "is_foreign"), GARBAGE)
def test_who_breaks_the_protocol_is_dropped_alone(data: bytes, is_foreign: bool, served: Served) -> None:
    bad, good = served.client(greets=False), served.client()
    bad.sendall(data)
    assert is_hung_up_on(bad)
    assert ask(good, PING + b"abcd", 4) == b"abcd"
    assert served.server.is_foreign == is_foreign


def test_a_large_value_arrives_and_goes_out_whole(served: Served) -> None:
    client = served.client()
    value = "x" * MAX_TEXT
    client.sendall(SET + text("k") + text(value))
    assert ask(client, GET + text("k"), MAX_TEXT + 8) == text(value)


def test_who_stores_without_end_is_dropped(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_ft.worker.store.MAX_STORED", 1 << 16)
    greedy, other = served.client(), served.client()
    greedy.sendall(SET + text("k") + text("x" * (1 << 16)))
    assert is_hung_up_on(greedy)
    assert ask(other, DELETE + text("k"), 8) == number(1)
    assert ask(other, PING + b"abcd", 4) == b"abcd"
