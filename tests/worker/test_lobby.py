"""Strangers are few, and who has to go is one of those that are many and have nothing to say."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from prefect_ft.worker import descriptors
from prefect_ft.worker.lobby import MAX_STRANGERS, Lobby, max_strangers
from prefect_ft.worker.loop import Loop


class Place:
    """A lobby with room for three strangers; `came` are the connections that came in, `gone` those that had to go."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.loop = Loop()
        self.came: list[socket.socket] = []
        self.gone: list[int] = []
        self.lobby: Lobby[socket.socket] = Lobby(
            self.loop, "test", 3, lambda visitor: self.gone.append(self.came.index(visitor))
        )
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.lobby.open(listener, self._enter)
        stack.callback(self.lobby.close)

    def _enter(self, connection: socket.socket) -> socket.socket:
        self.came.append(self._stack.enter_context(connection))
        return connection

    def connect(self, host: str = "127.0.0.1") -> socket.socket:
        """Connect from an address of this machine, and have it taken."""
        connection = self._stack.enter_context(socket.create_connection(self.address, 5, (host, 0)))
        self.loop.step()
        return connection


@pytest.fixture
def place() -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(stack)


def test_the_oldest_stranger_goes(place: Place) -> None:
    for _ in range(5):
        place.connect()
    assert place.gone == [0, 1]


def test_a_visitor_that_belongs_here_is_none_of_the_strangers(place: Place) -> None:
    place.connect()
    assert place.lobby.release(place.came[0])
    assert not place.lobby.release(place.came[0])
    for _ in range(4):
        place.connect()
    assert place.gone == [1]


def test_strangers_of_one_address_do_not_push_out_those_of_another(place: Place) -> None:
    place.connect("127.0.0.2")
    for _ in range(5):
        place.connect("127.0.0.3")
    place.connect("127.0.0.4")
    assert place.gone == [1, 2, 3, 4]


def test_a_stranger_that_has_just_spoken_is_passed_over(place: Place) -> None:
    place.connect().sendall(b"key")
    for _ in range(4):
        place.connect()
    assert place.gone == [1, 2]


def test_a_stranger_that_has_gone_untold_goes_first(place: Place) -> None:
    for _ in range(3):
        place.connect().sendall(b"noise")
    place.came[1].close()
    place.connect()
    assert place.gone == [1]


def test_strangers_that_all_speak_go_in_their_order(place: Place) -> None:
    for _ in range(5):
        place.connect().sendall(b"noise")
    assert place.gone == [0, 1]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_without_descriptors_strangers_go_and_then_nothing_is_taken_for_a_while(
    place: Place, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.connect()
    place.connect()

    def fail(_: socket.socket) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(descriptors, "accept", fail)
    for gone in ([0], [0, 1], [0, 1]):
        place.connect()
        assert place.gone == gone
    assert place.loop.is_set("test opens")
    monkeypatch.undo()
    place.loop.step()  # until the timer
    place.loop.step()
    assert len(place.came) == 3


def test_the_port_is_free_once_the_lobby_is_shut_and_strangers_stay(place: Place) -> None:
    connection = place.connect()
    place.lobby.shut()
    with socket.create_server(place.address[:2]):
        assert place.gone == []
    place.lobby.close()
    assert connection.recv(1) == b""


def test_strangers_have_a_quarter_of_the_descriptors_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    for hard, clients, most in (
        (1 << 20, 8, 1032), (1 << 20, 4000, 5024), (1024, 4000, 256), (256, 8, 64), (32, 8, MAX_STRANGERS),
    ):  # fmt: skip
        monkeypatch.setattr("resource.getrlimit", lambda _, hard=hard: (32, hard))
        assert max_strangers(clients) == most
