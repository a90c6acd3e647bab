"""What is asked of many node servers: of all at once, or of a few whatever their number."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from prefect_ft.backends.base import AgentSettings, Worker
from prefect_ft.backends.direct import NoAnswerError
from prefect_ft.backends.slurm.allocations import Allocations
from prefect_ft.backends.slurm.backend import SlurmBackend
from prefect_ft.backends.slurm.commands import CommandResult, Slurm
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.backends.slurm.links import answering
from prefect_ft.backends.slurm.peers import PEERS, Peers
from prefect_ft.errors import BackendError
from prefect_ft.run import certificates_of
from prefect_ft.worker.holder import ALLOCATION

COUNT = 60
WAIT_S = 20.0


class Node:
    """The link to a node server that answers once all are asked, or at once."""

    def __init__(self, name: str, number: int, together: threading.Barrier | None) -> None:
        self.system, self.host, self.port = name, f"127.1.0.{number + 1}", 1000 + number
        self._together = together
        self.asked: list[str] = []

    def _meet(self) -> None:
        if self._together is not None:
            self._together.wait(WAIT_S)

    def ask(self, op: str, timeout_s: float = 0, **fields: Any) -> Mapping[str, Any]:
        self.asked.append(op)
        self._meet()
        return {"port": 1, "places": []}

    def answers(self) -> bool:
        self._meet()
        return self.system != "n3"

    def is_going(self) -> bool | None:
        self.asked.append("is_going")
        return False

    def close(self) -> None:
        """Nothing is open."""


def links(together: threading.Barrier | None) -> dict[str, Any]:
    return {f"n{number}": Node(f"n{number}", number, together) for number in range(COUNT)}


def backend(root: Path, nodes: dict[str, Any]) -> SlurmBackend:
    allocations = Allocations(root)
    (allocations.directory / "slurm-1").mkdir(parents=True)
    told = {"job": "1", "nodes": list(nodes), "hosts": {}}
    (allocations.directory / "slurm-1" / ALLOCATION).write_text(json.dumps(told))
    allocations.choose("slurm-1")
    settings = AgentSettings(
        run_id="r", key="k" * 64, phase_index=0, sample_period_s=10, orphan_timeout_s=10, spool_bytes=1 << 20,
        checkpoints=None, certificates=certificates_of(root),
    )  # fmt: skip
    running = CommandResult(True, "JobId=1 JobState=RUNNING Reason=None Restarts=0 NodeList=n[0-59]\n", "")
    infrastructure, slurm = SlurmInfrastructure(type="slurm"), Slurm(run=lambda *_: running)
    with patch("prefect_ft.backends.slurm.backend.links_to", return_value=nodes):
        return SlurmBackend(settings, infrastructure, root, system_env={}, slurm=slurm)


def workers() -> list[Worker]:
    return [Worker(number=number, system=f"n{number}", epoch=1, decision=0) for number in range(COUNT)]


@pytest.mark.parametrize("what", ["create", "destroy", "find"])
def test_an_order_is_at_all_nodes_before_the_first_has_carried_it_out(tmp_path: Path, what: str) -> None:
    nodes = links(threading.Barrier(COUNT))
    made = backend(tmp_path, nodes)
    if what == "create":
        assert len(made.create(workers())) == COUNT
    elif what == "destroy":
        made.destroy(workers())
    else:
        assert made.find() == []
    assert all(len(node.asked) == 1 for node in nodes.values())


class Busy(Node):
    """A node server that hangs up on the first that comes, by how it does so."""

    error: OSError

    def ask(self, op: str, timeout_s: float = 0, **fields: Any) -> Mapping[str, Any]:
        told = super().ask(op, timeout_s, **fields)
        if len(self.asked) == 1:
            raise self.error
        return told


def test_a_node_that_was_too_busy_to_shake_hands_is_asked_once_more(tmp_path: Path) -> None:
    nodes = links(None)
    nodes["n2"] = Busy("n2", 2, None)
    nodes["n2"].error = ConnectionError("EOF occurred in violation of protocol")
    assert len(backend(tmp_path, nodes).create(workers())) == COUNT
    assert nodes["n2"].asked == ["start", "start"]


def test_a_node_that_does_not_answer_at_all_is_missed_at_once(tmp_path: Path) -> None:
    nodes = links(None)
    nodes["n2"] = Busy("n2", 2, None)
    nodes["n2"].error = NoAnswerError("nothing answers")
    with pytest.raises(BackendError, match="node n2 does not answer") as failed:
        backend(tmp_path, nodes).create(workers())
    assert failed.value.system == "n2"
    assert "start" not in nodes["n2"].asked[1:]


def test_the_nodes_of_an_allocation_are_asked_at_once_whether_they_answer() -> None:
    nodes = links(threading.Barrier(COUNT))
    assert nodes.keys() - answering(nodes) == {"n3"}


def test_a_loss_asks_a_few_nodes_whether_all_were_told_to_go(tmp_path: Path) -> None:
    nodes = links(None)
    found = backend(tmp_path, nodes).evidence(workers()[3], is_gone=True)
    assert found is not None
    assert (found.rule, found.text) == ("node-lost", "nothing answers on the node n3")
    assert sum(len(node.asked) for node in nodes.values()) == PEERS + 1
    assert nodes["n3"].asked == ["is_going"]


class Going(Node):
    """The link to a node server that was told to go."""

    def is_going(self) -> bool | None:
        return True


@pytest.mark.parametrize(
    ("going", "rule"),
    [
        pytest.param("n60", "further-job-ended", id="a-further-job"),
        pytest.param("n1", "allocation-ended", id="the-allocation"),
        pytest.param(None, "node-lost", id="a-node-alone"),
    ],
)
def test_what_ends_a_node_of_a_further_job(tmp_path: Path, going: str | None, rule: str) -> None:
    """Its nodes say nothing of the allocation's end, and the allocation's end is theirs."""
    nodes = links(None)
    made = backend(tmp_path, nodes)
    allocations = Allocations(tmp_path)
    further = allocations.directory / "slurm-2"
    further.mkdir()
    (further / ALLOCATION).write_text(json.dumps({"job": "2", "nodes": ["n60"], "hosts": {}}))
    allocations.choose("slurm-1+2")
    nodes["n60"] = Node("n60", 60, None)
    nodes["n60"].answers = lambda: False
    if going is not None:
        nodes[going] = Going(going, 0, None)
    found = made.evidence(Worker(number=0, system="n60", epoch=1, decision=0), is_gone=True)
    assert found is not None
    assert found.rule == rule


def test_peers_are_those_that_follow_and_each_address_is_looked_up_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up: list[Any] = []
    look_up = socket.getaddrinfo

    def noted(host: Any, *words: Any, **more: Any) -> Any:
        looked_up.append(host)
        return look_up(host, *words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", noted)
    nodes = Peers(links(None))
    peers = [nodes.addresses(worker.system) for worker in workers()]
    assert peers[0] == [(f"127.1.0.{number + 1}", 1000 + number) for number in range(1, PEERS + 1)]
    assert peers[COUNT - 1] == [(f"127.1.0.{number + 1}", 1000 + number) for number in range(PEERS)]
    assert sorted(looked_up) == sorted({node.host for node in links(None).values()})


def test_a_port_is_read_once_from_each_file(tmp_path: Path) -> None:
    allocations = Allocations(tmp_path)
    place = allocations.directory / "slurm-1"
    place.mkdir(parents=True)
    (place / ALLOCATION).write_text(json.dumps({"job": "1", "nodes": ["n0", "n1", "n2"], "hosts": {}}))
    allocation = allocations.named("slurm-1")
    assert allocation is not None
    assert allocations.ports(allocation) == {}
    (place / "n1.json").write_text('{"port": 7}')
    (place / "n2.json").write_text("{")
    assert allocations.ports(allocation) == {"n1": 7}
    (place / "n1.json").write_text('{"port": 8}')
    (place / "n2.json").write_text('{"port": 9}')
    assert allocations.ports(allocation) == {"n1": 7, "n2": 9}
    (place / "new").write_text('{"port": 8}')
    (place / "new").replace(place / "n1.json")
    assert allocations.ports(allocation) == {"n1": 8, "n2": 9}
    (place / "n1.json").unlink()
    assert allocations.ports(allocation) == {"n2": 9}
