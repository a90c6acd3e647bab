"""A worker that is cut off from everybody ends its ranks; one that merely has no orchestrator never does."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_fixtures import HandMadeWorker, StartAgent
from agents import AgentClient, network, script, wait_until_ended

from prefect_ft.backends.direct import addresses_of
from prefect_ft.run.certificate import certificates_of
from prefect_ft.worker.partition import LOOKS, Silence

HOST = "127.0.0.1"
WAIT = "import signal; print('up', flush=True); signal.pause()"


# -- timing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heard", "at", "expected"),
    [
        pytest.param([("answer", 0)], 9.9, (False, 0.1), id="not-yet"),
        pytest.param([("answer", 0)], 10, (True, 0), id="to-the-moment"),
        pytest.param([("answer", 0), ("answer", 8)], 17, (False, 1), id="an-answer"),
        pytest.param([("answer", 0), ("orchestrator", 8)], 17, (False, 1), id="an-orchestrator"),
        pytest.param([("answer", 0), ("orchestrator", 8)], 18, (True, 0), id="neither-since"),
        pytest.param([], 1000, (False, -990), id="who-never-answered-is-not-missed"),
        pytest.param([("orchestrator", 8)], 1000, (False, -982), id="nor-with-an-orchestrator"),
    ],
)
def test_how_long_nobody_may_be_heard_of(
    heard: list[tuple[str, float]], at: float, expected: tuple[bool, float]
) -> None:
    silence = Silence(10, now=0)
    for who, when in heard:
        silence.hear_answer(when) if who == "answer" else silence.hear(when)
    assert (silence.is_cut(at), pytest.approx(silence.left_s(at))) == expected


# -- agents -------------------------------------------------------------------------------------------


@pytest.fixture
def api() -> Iterator[socket.socket]:
    """Who answers as the cluster's API would: the kernel takes the connection."""
    with socket.create_server((HOST, 0)) as listener:
        listener.settimeout(30)
        yield listener


Begun = tuple[HandMadeWorker, AgentClient, int]


@pytest.fixture
def begin(start_agent: StartAgent, api: socket.socket, tmp_path: Path) -> Callable[..., Begun]:
    """Start a rank whose agent has little patience; return its agent, who is attached, and its pid."""

    def begin(timeout_s: float, *peers: str, port: int | None = None) -> Begun:
        with socket.create_server(("", 0)) as free:
            port = port or free.getsockname()[1]
        agent = start_agent(
            network={
                **network(port, certificates_of(tmp_path), partition_timeout_s=timeout_s),
                "api": [api.getsockname()],
            },
            faults={"partition.py": "_own_api = list"},
        )
        client = agent.attached()
        own = {"command": script(WAIT), "cwd": "/", "env": {}, "ranks": {"0": {}}, "note": {}}
        client.say("start", token=[1, 0, 1], peers=list(peers), **own)
        pid = client.expect("started")["pids"]["0"]
        client.expect_printed("up")
        return agent, client, pid

    return begin


def is_asked(listener: socket.socket, times: int) -> None:
    """Wait until somebody has asked here so often."""
    for _ in range(times):
        listener.accept()[0].close()


def test_who_hears_of_nobody_ends_its_ranks_and_says_so(
    begin: Callable[..., Begun], api: socket.socket
) -> None:
    agent, client, pid = begin(0.4)
    is_asked(api, 1)
    api.close()
    client.close()
    wait_until_ended(pid)
    later = agent.attached(epoch=2)
    attached = later.expect_attached()
    assert (attached["running"], attached["exits"]["0"]["signal"], attached["over"]) == ([], 9, True)
    assert agent.log == "prefect-ft: ended its ranks: no orchestrator for 0.4 s\n"


def test_an_orchestrator_that_is_away_is_no_reason(begin: Callable[..., Begun], api: socket.socket) -> None:
    agent, client, _ = begin(0.2)
    client.close()
    is_asked(api, 3 * LOOKS)
    later = agent.attached(epoch=2)
    assert later.expect_attached()["running"] == [0]
    later.stop()


def test_another_agent_that_answers_is_reason_enough_to_go_on(
    begin: Callable[..., Begun], api: socket.socket
) -> None:
    with socket.create_server(("127.0.0.2", 0)) as peer:
        peer.settimeout(30)
        agent, client, _ = begin(0.2, "127.0.0.2", port=peer.getsockname()[1])
        api.close()
        client.close()
        is_asked(peer, 3 * LOOKS)
        later = agent.attached(epoch=2)
        assert later.expect_attached()["running"] == [0]
        later.stop()


def test_an_orchestrator_that_is_attached_is_reason_enough(
    begin: Callable[..., Begun], api: socket.socket
) -> None:
    _, client, _ = begin(0.2)
    is_asked(api, 1)
    api.close()
    assert client.says_nothing(3 * 0.2)
    client.stop()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://10.99.0.1:6443", [("10.99.0.1", 6443)]),
        ("https://10.99.0.1", [("10.99.0.1", 443)]),
        ("http://[fd00::1]", [("fd00::1", 80)]),
        ("https://no.such.host.invalid:6443", []),
    ],
)
def test_where_the_api_is(url: str, expected: list[tuple[str, int]]) -> None:
    assert addresses_of(url) == expected
