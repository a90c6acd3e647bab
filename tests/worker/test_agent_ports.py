"""The ports for ranks: where they are open, and that strangers neither keep ranks out nor the agent busy."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_fixtures import HandMadeWorker, MakeWorker, StartAgent
from agents import AgentClient, script
from crowds import Crowd, Turns, listening_at

from prefect_ft.supervisor.launch import USES_STORE
from prefect_ft.worker.coordination import KEY_VARIABLE, STORE_VARIABLE, served_at

RENDEZVOUS = {"by": "agent", "command": ["python"], "cwd": "/", "env": {}}

JOINS = """
import os, socket, struct, sys
from prefect_ft.inprocess.client import Address, Connection
from prefect_ft.worker.coordination import KEY_VARIABLE, STORE_VARIABLE

def number(value): return struct.pack("<q", value)
def text(value): return number(len(value)) + value
def add(store, key):
    store.sendall(bytes([4]) + text(key) + number(1))
    return struct.unpack("<q", store.recv(8, socket.MSG_WAITALL))[0]

size, place = int(os.environ["WORLD_SIZE"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
def greeted():
    store = socket.create_connection(place)
    store.sendall(b"\\0" + struct.pack("<I", 0x3C85F7CE) + b"\\x0dPING")
    if store.recv(4, socket.MSG_WAITALL) != b"PING":
        raise ConnectionResetError
    return store

store = None
while store is None:  # as torch's clients do
    try:
        store = greeted()
    except ConnectionError:
        pass
if add(store, b"came") == size:
    store.sendall(bytes([1]) + text(b"all") + text(b"yes"))
store.sendall(bytes([6]) + number(1) + text(b"all"))
assert store.recv(1) == b"\\0"
port = int(os.environ[STORE_VARIABLE].partition(":")[2])
address = Address(place[0], port, os.environ[KEY_VARIABLE], 30.0, 0)
rank = int(os.environ["RANK"])
control, alert = Connection(address, 20.0), Connection(address, 20.0)
alert.listen(rank)
control.ask(20.0, op="enter", rank=rank, size=size, iteration=0, step=None, without=[], barrier_s=30)
os.write(1, b"is in\\n")
"""
"""A rank: by the rendezvous store it waits for all others, and then enters the store of in-process restarts."""

STAYS = "import signal\nsignal.pause()"
TALKS = "import time\nfor number in range(100): print('line', number, flush=True); time.sleep(0.01)\n"
RANKS = 4


class Gang:
    """Attempts on an agent that serves both stores."""

    def __init__(self, client: AgentClient, attached: dict[str, Any]) -> None:
        self.client = client
        self.attempt = 0
        self._ports(attached)

    def _ports(self, told: dict[str, Any]) -> None:
        self.port, self.in_process_port = told["port"], told["in_process_port"]
        assert told["store"]

    def start(self, code: str = JOINS + STAYS, ranks: int = RANKS, **env: str) -> dict[str, Any]:
        self.attempt += 1
        env = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "WORLD_SIZE": str(ranks),
            USES_STORE: "True",
            STORE_VARIABLE: served_at(str(self.port), self.in_process_port),
            KEY_VARIABLE: "key",
            **env,
        }
        started = self.client.start(script(code), self.attempt, ranks=ranks, **env)
        assert started["ev"] == "started", started
        return started

    def all_are_in(self, ranks: int = RANKS) -> None:
        try:
            for rank in range(ranks):
                self.client.expect("output", rank=rank, text="is in\n")
        except TimeoutError as exc:
            said = [event for event in self.client.heard if event["ev"] in ("output", "exited")]
            raise AssertionError(said[-2 * ranks :]) from exc

    def stop(self) -> None:
        self._ports(self.client.stop(self.attempt))


def attached(agent: HandMadeWorker, epoch: int = 1) -> Gang:
    client = agent.client(epoch)
    return Gang(client, client.attach())


@pytest.fixture
def turns(tmp_path: Path) -> Turns:
    return Turns(tmp_path / "turns")


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """A test of its own may have both ends of two thousand connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.long)])
def test_strangers_without_a_key_keep_neither_ranks_nor_a_comeback_out(
    start_agent: StartAgent, turns: Turns, count: int
) -> None:
    agent = start_agent(
        open_files=64, most_open_files=256, rendezvous=RENDEZVOUS, faults={"loop.py": turns.fault}
    )
    gang = attached(agent)
    for epoch in range(2, 5):
        gang.start(STAYS)  # only to have the ports open: which are others in each attempt
        with Crowd(count, gang.port, gang.in_process_port):
            gang.stop()
        gang.start(JOINS + STAYS)
        with Crowd(count, gang.port, gang.in_process_port):
            gang.all_are_in()
            assert gang.client.attach()["ev"] == "attached"  # its own answer comes once all before it is done
            attempt, ports = gang.attempt, (gang.port, gang.in_process_port)
            gang = attached(agent, epoch)  # while they are there
            gang.attempt = attempt
            assert (gang.port, gang.in_process_port) == ports
            gang.stop()
    assert turns() < 3 * 4 * count * 4 + 2000
    assert agent.log == ""


@pytest.mark.parametrize("count", [150, 1000])
def test_ranks_get_in_while_the_door_is_full(start_agent: StartAgent, count: int) -> None:
    agent = start_agent(open_files=64, most_open_files=256, rendezvous=RENDEZVOUS)
    gang = attached(agent)
    gate = agent.home / "gate"
    wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.001)\n"
    gang.start(wait + JOINS + STAYS)
    with Crowd(count, gang.port, gang.in_process_port):
        gate.touch()
        gang.all_are_in()
        gang.stop()


@pytest.mark.parametrize("which", ["port", "in_process_port"])
def test_an_agent_without_descriptors_does_not_spin(
    start_agent: StartAgent, turns: Turns, which: str
) -> None:
    agent = start_agent(open_files=48, rendezvous=RENDEZVOUS, faults={"loop.py": turns.fault})
    gang = attached(agent)
    gang.start(TALKS + STAYS, ranks=1)
    with Crowd(150, getattr(gang, which)):
        gang.client.expect_printed("line 0\n")
        before = turns()
        gang.client.expect_printed("line 99\n")
        assert turns() - before < 2000
    gang.stop()
    gang.start(JOINS + STAYS, ranks=1)
    gang.all_are_in(1)
    assert agent.log == ""


def test_the_ports_for_ranks_are_open_where_the_ranks_meet_and_nowhere_else(make_worker: MakeWorker) -> None:
    client = make_worker(rendezvous=RENDEZVOUS).client()
    told = client.attach()
    assert listening_at(told["pid"]) == set()
    gang = Gang(client, told)
    gang.start(JOINS + STAYS)
    gang.all_are_in()
    assert listening_at(told["pid"]) == {("127.0.0.1", gang.port), ("127.0.0.1", gang.in_process_port)}
    gang.stop()
    assert listening_at(told["pid"]) == set()


@pytest.mark.parametrize(
    ("master", "host"),
    [
        pytest.param("127.0.0.1", "127.0.0.1", id="an-address"),
        pytest.param("localhost", "127.0.0.1", id="localhost"),
        pytest.param("::1", "::1", id="an-address-of-version-6"),
        pytest.param("some.name", "::", id="a-name"),
        pytest.param("192.0.2.1", "::", id="an-address-that-is-translated"),
    ],
)
def test_where_the_ranks_meet(make_worker: MakeWorker, master: str, host: str) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    client = make_worker(rendezvous=RENDEZVOUS).client()
    gang = Gang(client, client.attach())
    gang.start(STAYS, MASTER_ADDR=master)
    assert {at for at, _ in listening_at(client.expect_attached()["pid"])} == {host}


LIMITS = "import resource\nprint('limits', *resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)\n"


@pytest.mark.parametrize("warm", [None, {"modules": ["json"], "memory_mb": 1024}], ids=["cold", "warm"])
def test_ranks_have_the_limits_that_the_agent_was_started_with(
    start_agent: StartAgent, warm: dict[str, Any] | None
) -> None:
    agent = start_agent(open_files=64, most_open_files=512, rendezvous=RENDEZVOUS, warm=warm)
    gang = attached(agent)
    for is_warm in (False, warm is not None):
        started = gang.start(LIMITS + JOINS + STAYS, ranks=1)
        assert started["warm"] is is_warm
        gang.client.expect_printed("limits 64 512\n", first=0)
        gang.client.expect("output", text="is in\n")
        if warm is not None and not is_warm:
            gang.client.expect("warm", ready=True, parked=1)
        with Crowd(150, gang.port, gang.in_process_port):
            gang.stop()
        gang.client.heard.clear()


@pytest.mark.long  # a thousand ranks
def test_more_ranks_than_the_soft_limit_has_descriptors_meet(start_agent: StartAgent) -> None:
    agent = start_agent(open_files=64, most_open_files=512, rendezvous=RENDEZVOUS)
    gang = attached(agent)
    many = 60  # in one process, three connections each
    forks = f"""
import os
for rank in range({many}):
    os.environ["RANK"] = str(rank)
    if rank == {many - 1} or os.fork() == 0:
        break
"""
    gang.start(forks + JOINS + STAYS, ranks=1, WORLD_SIZE=str(many))
    gang.client.expect_printed("is in\n" * many)
