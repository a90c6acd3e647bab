"""A network that is cut: nobody is told so, and both sides find out by what they do not hear."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from agent_fixtures import HandMadeWorker, StartAgent
from agents import WORKER, AgentClient, network, script, wait_until_ended

from prefect_ft.backends.base import Address
from prefect_ft.backends.direct import DirectWay, NoAnswerError
from prefect_ft.run.certificate import certificates_of

PORT = 17733
HERE, THERE = "198.51.100.1", "198.51.100.2"
"""Addresses that are for documentation, and nobody's."""

WAIT = "import signal; print('up', flush=True); signal.pause()"


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtPort(Address):
    """Where the agent listens."""

    way: DirectWay

    def connect(self, timeout_s: float) -> socket.socket:
        return self.way.connect(self.host, WORKER)


@dataclass
class Elsewhere:
    """An agent with a network of its own, joined to this one by a cable."""

    agent: HandMadeWorker
    cable: str
    address: AtPort

    def attached(self) -> AgentClient:
        self.agent.clients.append(AgentClient(self.address))
        client = self.agent.clients[-1]
        client.attach()
        return client

    def cut(self) -> None:
        """Unplug the cable at the other end: here everything goes on as if somebody still listened."""
        subprocess.run(
            ["nsenter", "-n", "-t", str(self.agent.process.pid), "ip", "link", "set", "cable", "down"],
            check=True,
        )


@pytest.fixture
def elsewhere(start_agent: StartAgent, tmp_path: Path, runtime_dir: Path) -> Iterator[Elsewhere]:
    """`own` is the python that makes a network for itself first."""
    tools = all(shutil.which(name) for name in ("ip", "unshare", "nsenter"))
    if os.getuid() != 0 or not tools:
        pytest.skip("needs network namespaces: they are made as root, by ip and unshare")
    own = tmp_path / "python"
    own.write_text(f'#!/bin/sh\nexec unshare -n {sys.executable} "$@"\n')
    own.chmod(0o755)
    certificates = certificates_of(tmp_path)
    agent = start_agent(
        str(own),
        network={**network(PORT, certificates, 1.0, 1.0), "api": [[HERE, PORT]]},
        faults={"partition.py": "_own_api = list"},
    )
    agent.attached().stop()  # it is in its own network by now
    cable, pid = f"pft{os.getpid()}", str(agent.process.pid)
    inside = ("nsenter", "-n", "-t", pid, "ip")
    ip("link", "add", cable, "type", "veth", "peer", "name", "cable", "netns", pid)
    try:
        ip("addr", "add", f"{HERE}/30", "dev", cable)
        ip("link", "set", cable, "up")
        for words in (["addr", "add", f"{THERE}/30", "dev", "cable"], ["link", "set", "cable", "up"]):
            subprocess.run([*inside, *words], check=True)
        way = DirectWay(certificates.orchestrator(), PORT, 1.0)
        yield Elsewhere(agent, cable, AtPort(socket_path=agent.home, host=THERE, way=way))
    finally:
        subprocess.run(["ip", "link", "del", cable], capture_output=True, check=False)


def hear_on(client: AgentClient) -> None:
    while True:
        client.hear()


def test_a_cut_network_is_noticed_on_both_sides(elsewhere: Elsewhere) -> None:
    """The rank is ended by its own agent; nobody tells it to."""
    with socket.create_server((HERE, PORT)):  # the API, for who is there
        client = elsewhere.attached()
        pid = client.start(script(WAIT))["pids"]["0"]
        client.expect_printed("up")
        elsewhere.cut()
        with pytest.raises((TimeoutError, EOFError)):  # some Pythons take each error below TLS for its end
            hear_on(client)
        wait_until_ended(pid)
    with pytest.raises(NoAnswerError):
        elsewhere.address.connect(1)
    assert "ended its ranks: no orchestrator for 1 s\n" in elsewhere.agent.log
