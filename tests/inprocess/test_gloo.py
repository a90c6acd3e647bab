"""The connections of gloo's loop are shut down, and nothing else is: not what listens, not what others wait for."""

from __future__ import annotations

import os
import platform
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from prefect_ft.inprocess import gloo


class Loop:
    """A thread of some name that waits for one that listens and one that is connected, as gloo's does."""

    def __init__(self, name: str, stack: ExitStack) -> None:
        self.listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.peer = stack.enter_context(socket.create_connection(self.listening.getsockname()))
        self.connected = stack.enter_context(self.listening.accept()[0])
        self._stop_hear, self._stop = os.pipe()
        self.epoll = select.epoll()
        for each in (self._stop_hear, self.listening):
            self.epoll.register(each, select.EPOLLIN)
        self.epoll.register(self.connected, 0)
        self._waits = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(name,))
        self._thread.start()
        self._waits.wait()
        stack.callback(self._end)

    def _run(self, name: str) -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        self._waits.set()
        self.epoll.poll()

    def _end(self) -> None:
        os.write(self._stop, b"!")
        self._thread.join()
        self.epoll.close()
        os.close(self._stop)
        os.close(self._stop_hear)

    @property
    def is_up(self) -> bool:
        self.peer.settimeout(0.0)
        try:
            return bool(self.peer.recv(1))
        except BlockingIOError:
            return True


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_what_gloo_is_connected_with_is_shut_down_and_it_listens_on(stack: ExitStack) -> None:
    loops = [Loop("gloo_tcp_loop", stack) for _ in range(2)]
    assert gloo.hang_up() == 2
    assert [loop.is_up for loop in loops] == [False, False]
    for loop in loops:
        socket.create_connection(loop.listening.getsockname(), timeout=5).close()


@pytest.mark.parametrize("name", ["python", "gloo_tcp_loop2", "pt_gloo_runloop"])
def test_what_others_wait_for_stays(name: str, stack: ExitStack) -> None:
    loop = Loop(name, stack)
    assert (gloo.hang_up(), loop.is_up) == (0, True)


def test_a_descriptor_that_is_something_else_by_now_is_left_alone(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop("gloo_tcp_loop", stack)
    monkeypatch.setattr(gloo, "_watched", lambda _: [(loop.connected.fileno(), 1), (1 << 20, 1)])
    assert (gloo.hang_up(), loop.is_up) == (0, True)


def test_on_a_machine_whose_calls_have_other_numbers_nothing_is_done(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop("gloo_tcp_loop", stack)
    monkeypatch.setattr(platform, "machine", lambda: "another")
    assert (gloo.hang_up(), loop.is_up) == (0, True)
