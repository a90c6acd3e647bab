"""Which systems are lost and which take no pods, by what is known of their nodes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from prefect_ft.backends.kubernetes.nodes import Nodes
from prefect_ft.errors import BackendError

LABEL = "example.com/system"


class Told:
    """In the place of a cluster: lists its nodes once, and has nothing to add."""

    def __init__(self, nodes: list[dict[str, Any]] | None) -> None:
        self._nodes = nodes
        self._over = threading.Event()

    def source_of_nodes(self, label: str) -> Told:
        assert label == LABEL
        return self

    def listed(self) -> tuple[list[dict[str, Any]], str]:
        if self._nodes is None:
            raise BackendError("away")
        return self._nodes, "1"

    def changes(self, _: str) -> Told:
        return self

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._over.wait()
        return iter(())

    def hang_up(self) -> None:
        self._over.set()

    close = hang_up


def node(name: str, system: str, ready: str = "True", *, cordoned: bool = False) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": name, "labels": {LABEL: system}},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize(
    ("nodes", "is_cut", "is_closed"),
    [
        pytest.param([node("a", "s0")], False, False, id="heard-of"),
        pytest.param([node("a", "s0", "Unknown")], True, False, id="not-heard-of"),
        pytest.param([node("a", "s0", "False")], True, False, id="not-ready"),
        pytest.param([node("a", "s0", cordoned=True)], False, True, id="cordoned"),
        pytest.param([node("a", "s1")], True, False, id="there-is-none"),
        pytest.param([{**node("a", "s0"), "status": {}}], True, False, id="nothing-is-known-of-it"),
        pytest.param(
            [node("a", "s0", "Unknown"), node("b", "s0", cordoned=True)],
            False,
            False,
            id="of-two-one-is-left",
        ),
        pytest.param(None, False, False, id="the-cluster-is-away"),
    ],
)
def test_systems(nodes: list[dict[str, Any]] | None, is_cut: bool, is_closed: bool) -> None:
    known: Any = Told(nodes)
    found = Nodes(known, LABEL, threading.Condition())
    try:
        assert (found.is_cut("s0"), found.is_closed("s0")) == (is_cut, is_closed)
    finally:
        found.close()
