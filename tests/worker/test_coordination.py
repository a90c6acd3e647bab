"""The store of in-process restarts, as an agent hosts it: over real connections, call after call."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from agent_fixtures import MakeWorker
from agents import Gate, script

from prefect_ft.inprocess.client import Address, Connection
from prefect_ft.inprocess.errors import StoreLostError
from prefect_ft.worker.coordination import (
    KEY_VARIABLE,
    STORE_VARIABLE,
    Coordination,
    Standing,
    port_served_at,
    served_at,
    tune,
)
from prefect_ft.worker.loop import Loop


class Host:
    """A loop of its own that serves; `told` are the standings that it was told of."""

    def __init__(self) -> None:
        self.told: list[Standing] = []
        listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = listening.getsockname()[1]
        self._loop, (self._hear, self._ring) = Loop(), socket.socketpair()
        self.coordination = Coordination(listening, "key", self._loop, on_change=self._tell)
        self._loop.watch(self._hear, lambda _: None)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _tell(self) -> None:
        self.told.append(self.coordination.standing)

    def _serve(self) -> None:
        while not self._is_over.is_set():
            self._loop.step()

    def stop(self) -> list[Standing]:
        """Serve no more, and return what was told up to now. Idempotent."""
        self._is_over.set()
        self._ring.send(b".")
        self._thread.join()
        return self.told

    def close(self) -> None:
        self.stop()
        self.coordination.close()
        self._hear.close()
        self._ring.close()


class Rank:
    """One rank's two connections for one call."""

    def __init__(self, port: int, rank: int, call: int) -> None:
        address = Address("127.0.0.1", port, "key", 30.0, call)
        self.rank = rank
        self.control, self.alert = Connection(address, 5.0), Connection(address, 5.0)
        self.alert.listen(rank)

    def enter(self, size: int, iteration: int = 0) -> None:
        fields = {"size": size, "iteration": iteration, "step": None, "without": [], "barrier_s": 30}
        self.control.send(op="enter", rank=self.rank, **fields)

    def complete(self, active: int, iteration: int = 0) -> None:
        self.control.send(op="done", rank=self.rank, iteration=iteration, active=active, completion_s=30)

    def hear(self) -> str:
        return str(self.control.receive(5.0)["ev"])

    def close(self) -> None:
        self.control.close()
        self.alert.close()


@pytest.fixture
def host() -> Iterator[Host]:
    with closing(Host()) as made:
        yield made


def run_call(host: Host, number: int, size: int) -> None:
    """Have a call begin and be completed."""
    ranks = [Rank(host.port, rank, number) for rank in range(size)]
    for rank in ranks:
        rank.enter(size)
    assert [rank.hear() for rank in ranks] == ["round"] * size
    for rank in ranks:
        rank.complete(size)
    assert [rank.hear() for rank in ranks] == ["complete"] * size
    for rank in ranks:
        rank.close()


def test_calls_follow_each_other_and_each_binds_its_ranks_while_it_runs(host: Host) -> None:
    for number in range(3):
        run_call(host, number, 2)
    assert host.stop() == [Standing((0, 1)), Standing()] * 3


def test_who_comes_too_late_to_a_call_takes_no_part_in_the_next_one(host: Host) -> None:
    run_call(host, 0, 2)
    with closing(Rank(host.port, 2, 0)) as late:
        late.enter(3)
        answer = late.control.receive(5.0)
    assert (answer["ev"], answer["excluded"]) == ("over", True)
    run_call(host, 1, 2)


def test_the_next_call_may_begin_while_somebody_is_still_in_the_last(host: Host) -> None:
    first = [Rank(host.port, rank, 0) for rank in range(2)]
    for rank in first:
        rank.enter(2)
    for rank in first:
        assert rank.hear() == "round"
        rank.complete(2)
    assert first[0].hear() == "complete"
    run_call(host, 1, 2)
    assert first[1].hear() == "complete"
    for rank in first:
        rank.close()


def test_the_end_of_a_rank_that_the_others_did_without_is_for_who_is_attached_to_judge(
    make_worker: MakeWorker, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    client = make_worker(rendezvous={"by": "ranks", "command": [], "env": {}}).attached()
    port = client.expect_attached()["in_process_port"]
    told = {STORE_VARIABLE: served_at("29500", port), KEY_VARIABLE: "key", "MASTER_PORT": "29500"}
    body = (
        f"import os; rank = int(os.environ['RANK']); rank and open({str(gate.path)!r}).read(); os._exit(rank)"
    )
    client.start(script(body), ranks=2, WORLD_SIZE="2", **told)
    assert not client.expect("exited", rank=0)["ends"]
    stays, goes = Rank(port, 0, 0), Rank(port, 1, 0)
    with closing(stays):
        for rank in (stays, goes):
            rank.enter(2)
        assert [stays.hear(), goes.hear()] == ["round", "round"]
        goes.close()
        stays.enter(2, iteration=1)
        assert stays.hear() == "round"
        stays.complete(1, iteration=1)
        assert stays.hear() == "complete"
    client.expect("call", excused=[1])
    gate.open()
    assert not client.expect("exited", rank=1)["ends"]
    assert client.stop()["deaths"] != []


def test_strangers_and_what_they_leave_are_nobodys_concern(host: Host) -> None:
    address = Address("127.0.0.1", host.port, "guessed", 30.0, 0)
    with closing(Connection(address, 5.0)) as stranger, pytest.raises(StoreLostError):
        stranger.listen(0)
    socket.create_connection(("127.0.0.1", host.port)).close()
    run_call(host, 0, 1)
    assert host.stop() == [Standing((0,)), Standing()]


@pytest.mark.parametrize(("heartbeat_s", "probe_s"), [(30.0, 8), (2.0, 1), (0.5, 1)])
def test_the_kernel_finds_out_that_a_machine_has_gone(heartbeat_s: float, probe_s: int) -> None:
    with socket.socket() as connection:
        tune(connection, heartbeat_s)
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT", "TCP_NODELAY")
        set_to = [connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert set_to[:4] == [probe_s, probe_s, 3, 1000 * heartbeat_s]
    assert set_to[4]


@pytest.mark.parametrize(
    ("told", "port"),
    [
        pytest.param(served_at("29500", 4000), 4000, id="ours"),
        pytest.param(served_at("29400", 4000), None, id="of-who-started-the-launcher"),
        pytest.param("", None, id="no-agent"),
        pytest.param(served_at("29500", None), None, id="no-port-was-free"),
    ],
)
def test_the_agents_store_is_for_the_agents_own_ranks(told: str, port: int | None) -> None:
    assert port_served_at(told, "29500") == port
