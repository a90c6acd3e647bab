"""Two ways to agents in pods: the first that is reached tells which; a lost node's connections are ended."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from prefect_ft.backends.kubernetes import reach as module
from prefect_ft.backends.kubernetes.reach import PATIENCE_S, Guard, Reach

REFUSED, SILENT = ConnectionRefusedError("refused"), TimeoutError("nothing answers")


@dataclass
class Ways:
    """Two ways that lead somewhere or not, and which of them were tried."""

    direct: OSError | None = None
    api: OSError | None = None
    tried: list[str] = field(default_factory=list)

    def directly(self) -> socket.socket:
        return self._open("direct", self.direct)

    def by_api(self) -> socket.socket:
        return self._open("api", self.api)

    def listens(self) -> bool:
        self.tried.append("asked")
        return self.api is None

    def _open(self, way: str, error: OSError | None) -> socket.socket:
        self.tried.append(way)
        if error is not None:
            raise error
        return socket.socket()


def connect(reach: Reach, ways: Ways) -> list[str]:
    """The ways that were tried; the last one led there, but where it says that none did."""
    ways.tried.clear()
    try:
        reach.connect(ways.directly, ways.by_api).close()
    except OSError as exc:
        ways.tried.append(str(exc))
    return ways.tried


@pytest.mark.parametrize(
    ("wanted", "direct", "api", "tried"),
    [
        pytest.param("auto", None, None, ["direct"], id="auto"),
        pytest.param("auto", SILENT, None, ["direct", "api"], id="auto-where-it-cannot-be"),
        pytest.param("auto", REFUSED, None, ["direct", "api"], id="auto-where-it-is-refused"),
        pytest.param("auto", SILENT, REFUSED, ["direct", "api", "refused"], id="neither"),
        pytest.param("direct", SILENT, None, ["direct", "nothing answers"], id="direct-alone"),
        pytest.param("api", None, None, ["api"], id="api"),
        pytest.param("api", None, REFUSED, ["api", "refused"], id="api-alone"),
    ],
)
def test_how_the_first_agent_is_reached(
    wanted: Any, direct: OSError | None, api: OSError | None, tried: list[str]
) -> None:
    assert connect(Reach(wanted), Ways(direct, api)) == tried


@pytest.mark.parametrize(
    ("first", "later", "tried"),
    [
        pytest.param(Ways(), Ways(SILENT), ["direct", "nothing answers"], id="direct-stays"),
        pytest.param(Ways(SILENT), Ways(), ["api"], id="api-stays"),
        pytest.param(Ways(SILENT, REFUSED), Ways(), ["direct"], id="none-is-no-choice"),
    ],
)
def test_what_led_to_the_first_is_the_way_to_all(first: Ways, later: Ways, tried: list[str]) -> None:
    reach = Reach("auto")
    connect(reach, first)
    assert connect(reach, later) == tried


def test_why_it_is_not_direct_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    reach, ways = Reach("auto"), Ways(SILENT)
    with caplog.at_level(logging.WARNING):
        connect(reach, ways)
        connect(reach, ways)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "(nothing answers)" in said


@pytest.mark.parametrize(
    ("wanted", "ways", "waited_s", "expected"),
    [
        pytest.param("auto", Ways(), 0, (True, ["direct"]), id="it-listens"),
        pytest.param("auto", Ways(REFUSED), 0, (False, ["direct"]), id="it-may-begin"),
        pytest.param("auto", Ways(REFUSED), PATIENCE_S, (True, ["direct", "asked"]), id="refused-too-long"),
        pytest.param("auto", Ways(SILENT), 0, (True, ["direct", "asked"]), id="not-from-here"),
        pytest.param("auto", Ways(SILENT, REFUSED), 0, (False, ["direct", "asked"]), id="neither"),
        pytest.param("direct", Ways(SILENT), PATIENCE_S, (False, ["direct"]), id="direct-alone"),
        pytest.param("api", Ways(), 0, (True, ["asked"]), id="api-alone"),
    ],
)
def test_whether_an_agent_that_begins_listens(
    wanted: Any, ways: Ways, waited_s: float, expected: tuple[bool, list[str]]
) -> None:
    assert (Reach(wanted).listens(ways.directly, ways.listens, waited_s), ways.tried) == expected


# -- connections to lost nodes ------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[Callable[[], tuple[socket.socket, socket.socket]]]:
    made: list[socket.socket] = []

    def make() -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket.socketpair()
        made.extend((ours, theirs))
        ours.settimeout(30)
        return ours, theirs

    yield make
    for each in made:
        each.close()


def test_connections_to_a_lost_node_end_and_others_stay(
    pair: Callable[[], tuple[socket.socket, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    lost: set[str] = set()
    guard = Guard(lost.__contains__)
    (one, _), (other, their_other) = pair(), pair()
    guard.watch(one, "s0")
    guard.watch(other, "s1")
    lost.add("s0")
    assert one.recv(1) == b""
    their_other.sendall(b"x")
    assert other.recv(1) == b"x"


def test_who_guards_goes_with_the_last_connection_and_comes_again(
    pair: Callable[[], tuple[socket.socket, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    monkeypatch.setattr(module, "LOOK_S", 0.01)
    lost: set[str] = set()
    guard = Guard(lost.__contains__)
    for _ in range(2):
        ours, _theirs = pair()
        before = threading.enumerate()  # other tests' guards may not have gone yet
        guard.watch(ours, "s0")
        (thread,) = [each for each in threading.enumerate() if each not in before]
        ours.close()
        thread.join(30)
        assert not thread.is_alive()
