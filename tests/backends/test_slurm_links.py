"""A node that is lost is found out once, at a new connection, however many ask."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from prefect_ft.backends.direct import NoAnswerError
from prefect_ft.backends.slurm.nodes import PROBE_S, NodeLink


class NoWay:
    """To a machine that accepts no connection; it notes how long each was waited for."""

    def __init__(self) -> None:
        self.waited: list[float | None] = []

    def connect(self, host: str, worker: str, *, port: int, within_s: float | None = None) -> socket.socket:
        self.waited.append(within_s)
        raise NoAnswerError(f"nothing answers at {host}")


def test_a_node_that_does_not_answer_is_waited_for_once() -> None:
    way: Any = NoWay()
    link = NodeLink(way, "n1", "127.0.0.1", 1, run_id="run", key="key", name="node-run")
    assert link.answers() is False
    assert link.is_going() is None
    with pytest.raises(NoAnswerError):
        link.ask("end", 45.0, places=["0-0-1-0"])
    assert way.waited == [PROBE_S]


def test_an_agent_that_nothing_answers_for_tells_of_its_node() -> None:
    """A lost node is found out by the connection that is made again to its agent, and not waited for twice."""
    way: Any = NoWay()
    link = NodeLink(way, "n1", "127.0.0.1", 1, run_id="run", key="key", name="node-run")
    with pytest.raises(NoAnswerError):
        link.connect("0-1-1-0", 2)
    assert link.answers() is False
    assert way.waited == [PROBE_S]


def test_a_node_that_was_silent_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_ft.backends.slurm.nodes.SILENT_S", 0.0)
    way: Any = NoWay()
    link = NodeLink(way, "n1", "127.0.0.1", 1, run_id="run", key="key", name="node-run")
    assert link.answers() is False
    assert link.answers() is False
    assert len(way.waited) == 2
