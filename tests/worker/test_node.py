"""The node server: a real process with real agents, reached by TLS as across a cluster, without a scheduler."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agents import KEY, RUN, AgentClient, settings, wait_until_ended

from prefect_ft.backends.base import Address, Worker, place_of
from prefect_ft.backends.direct import DirectWay
from prefect_ft.backends.home import agent_config
from prefect_ft.backends.payload import payload_directory
from prefect_ft.backends.slurm.nodes import NodeLink
from prefect_ft.errors import BackendError
from prefect_ft.run import certificates_of
from prefect_ft.worker.keys import verifiers_of
from prefect_ft.worker.node import KEY_NAME, agent_environment, base_of
from prefect_ft.worker.processes import started

NODE, NAME = "n7", "node-run-1"
PYTHON = sys.executable
WAIT = "import os, signal; os.write(1, b'up\\n'); signal.pause()"


@dataclass(frozen=True)
class OnNode(Address):
    """Where an agent listens."""

    open: Callable[[], socket.socket]

    def connect(self, timeout_s: float) -> socket.socket:
        return self.open()


class Server:
    """A node server, and what is made with it."""

    def __init__(self, directory: Path, orphan_timeout_s: float) -> None:
        self.root = directory
        self.certificates = certificates_of(directory)
        shown = self.certificates.worker(NAME)
        config = {
            "run": RUN,
            "verifiers": verifiers_of(KEY, KEY_NAME),
            "identity": {"own": shown.own, "trusts": shown.trusts},
            "silence_timeout_s": 5.0,
            "orphan_timeout_s": orphan_timeout_s,
        }
        (directory / "node.json").write_text(json.dumps(config))
        self.tenure = directory / "17"
        self.tenure.mkdir(exist_ok=True)
        self.report = self.tenure / f"{NODE}.json"
        self.tmp = directory / "tmp"
        self.tmp.mkdir(exist_ok=True)
        self.base = Path(base_of(RUN, "17", NODE, str(self.tmp)))
        self.way = DirectWay(self.certificates.orchestrator(), 0, 5.0)
        self.links: list[NodeLink] = []
        self.clients: list[AgentClient] = []
        payload = payload_directory(directory)
        with (directory / "node.log").open("ab") as log:
            self.process = subprocess.Popen(
                [PYTHON, "-I", "-S", str(payload), "node", str(directory / "node.json"), str(self.tenure)],
                env={
                    "PATH": os.environ["PATH"],
                    "SLURMD_NODENAME": NODE,
                    "SLURM_PROCID": "3",
                    "SLURM_JOB_ID": "17",
                    "TMPDIR": str(self.tmp),
                },
                stderr=log,
            )
        wait_for(lambda: self.report.exists() or self.process.poll() is not None)
        self.port = json.loads(self.report.read_text())["port"]

    def link(self, **changes: Any) -> NodeLink:
        given = {"run_id": RUN, "key": KEY, "name": NAME, **changes}
        self.links.append(NodeLink(self.way, given.pop("system", NODE), "127.0.0.1", self.port, **given))
        return self.links[-1]

    def start(self, link: NodeLink, worker: Worker, env: dict[str, Any] | None = None, **changes: Any) -> Any:
        notice_s = changes.pop("notice_s", 0.0)
        known = settings(**changes)
        place = place_of(0, worker)
        shown = self.certificates.worker(place)
        network = {
            "identity": {"own": shown.own, "trusts": shown.trusts},
            "silence_timeout_s": 5.0,
            "partition_timeout_s": 3600.0,
            "api": [],
        }
        config = agent_config(Path("/"), known, worker, network=network, notice_s=notice_s)
        return link.ask("start", place=place, config=config, env=env or {})

    def client(self, link: NodeLink, worker: Worker, port: int, epoch: int = 1) -> AgentClient:
        address = OnNode(
            socket_path=Path("/"), host="127.0.0.1", open=lambda: link.connect(place_of(0, worker), port)
        )
        self.clients.append(AgentClient(address, epoch))
        assert self.clients[-1].attach()["ev"] == "attached"
        return self.clients[-1]

    @property
    def log(self) -> str:
        return (self.root / "node.log").read_text()


def wait_for(check: Callable[[], object], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def worker(number: int = 0, decision: int = 0, epoch: int = 1) -> Worker:
    return Worker(number=number, system=NODE, epoch=epoch, decision=decision)


MakeServer = Callable[..., Server]


@pytest.fixture
def make_server(runtime_dir: Path, nobody_left: None) -> Iterator[MakeServer]:
    made: list[Server] = []

    def make(orphan_timeout_s: float = 3600.0) -> Server:
        directory = runtime_dir / "run"
        directory.mkdir(exist_ok=True)
        made.append(Server(directory, orphan_timeout_s))
        return made[-1]

    yield make
    for server in made:
        for each in (*server.clients, *server.links):
            each.close()
        for _ in range(2):
            if server.process.poll() is None:
                server.process.terminate()
                time.sleep(0.05)
        server.process.wait(timeout=60)


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    return make_server()


def run(client: AgentClient, code: str, attempt: int = 1) -> str:
    assert client.start([PYTHON, "-S", "-u", "-c", code], attempt)["ev"] == "started"
    client.expect("exited", code=0)
    client.stop(attempt)
    return client.printed().decode()


def test_an_agent_is_started_and_reached_at_its_own_port(server: Server) -> None:
    link = server.link()
    told = server.start(link, worker())
    client = server.client(link, worker(), told["port"])
    attached = client.expect_attached()
    assert (attached["worker"], attached["system"], attached["pid"]) == (0, NODE, told["pid"])
    assert told["port"] != server.port


def test_ranks_have_the_environment_of_the_node_and_none_of_the_step(server: Server) -> None:
    link = server.link()
    told = server.start(link, worker(), {"COLOUR": "blue", "LANG": None})
    code = "import os; print([os.environ.get(n) for n in ('COLOUR', 'SLURM_JOB_ID', 'SLURM_PROCID')])"
    assert run(server.client(link, worker(), told["port"]), code) == "['blue', '17', None]\n"


def test_a_start_is_idempotent(server: Server) -> None:
    link = server.link()
    first = server.start(link, worker())
    again = server.start(link, worker())
    assert (first["port"], first["pid"]) == (again["port"], again["pid"])


def test_two_agents_have_two_ports(server: Server) -> None:
    link = server.link()
    ports = {server.start(link, worker(number))["port"] for number in (0, 1)}
    assert len(ports) == 2
    listed = link.ask("list")["places"]
    assert [(each["place"], each["is_alive"]) for each in listed] == [("0-0-1-0", True), ("0-1-1-0", True)]
    assert {each["port"] for each in listed} == ports


def test_an_end_takes_all_that_runs_in_a_place_and_the_place(server: Server) -> None:
    link = server.link()
    told = server.start(link, worker())
    client = server.client(link, worker(), told["port"])
    client.start([PYTHON, "-S", "-u", "-c", f"import os\nif os.fork() == 0: os.setsid()\n{WAIT}"])
    client.expect_printed("up\nup")
    assert link.ask("end", 30.0, places=["0-0-1-0", "0-9-9-9"])["said"] == {}
    client.hear_to_the_end()
    assert link.ask("list")["places"] == []
    assert list(server.base.iterdir()) == []


def test_an_end_takes_what_outlived_its_agent_and_tells_what_that_said(server: Server) -> None:
    """`nobody_left` looks whether it is so."""
    link = server.link()
    told = server.start(link, worker())
    client = server.client(link, worker(), told["port"])
    client.start([PYTHON, "-S", "-u", "-c", WAIT])
    client.expect_printed("up")
    (server.base / "0-0-1-0" / "agent.log").write_text("it was too much\n")
    os.kill(told["pid"], signal.SIGKILL)
    wait_for(lambda: not link.ask("list")["places"][0]["is_alive"])
    with pytest.raises(BackendError, match="end it first"):
        server.start(link, worker())
    assert link.ask("end", places=["0-0-1-0"])["said"] == {"0-0-1-0": "it was too much"}
    assert link.ask("end", places=["0-0-1-0"])["said"] == {}


def test_what_an_agent_left_behind_is_listed(server: Server) -> None:
    link = server.link()
    server.start(link, worker(), orphan_timeout_s=0.01)
    wait_for(lambda: link.ask("list")["places"][0]["left"])
    (listed,) = link.ask("list")["places"]
    assert (listed["is_alive"], listed["left"]["over"]) == (False, True)


def test_another_orchestrator_finds_what_the_first_one_started(server: Server) -> None:
    told = server.start(first := server.link(), worker())
    client = server.client(first, worker(), told["port"])
    client.start([PYTHON, "-S", "-u", "-c", WAIT])
    client.expect_printed("up")
    second = server.link()
    (listed,) = second.ask("list")["places"]
    later = server.client(second, worker(), listed["port"], epoch=2)
    assert later.expect_attached()["running"] == [0]
    server.start(second, worker(1, epoch=2))
    with pytest.raises(BackendError, match="fenced"):
        server.start(first, worker(2, epoch=1))


def test_told_to_go_it_passes_the_notice_on_and_waits_for_the_agents(server: Server) -> None:
    link = server.link()
    told = server.start(link, worker(), notice_s=60.0)
    client = server.client(link, worker(), told["port"])
    client.start([PYTHON, "-S", "-u", "-c", WAIT])
    client.expect_printed("up")
    server.process.terminate()
    assert 0 < client.expect("leaving")["within_s"] <= 60.0
    wait_for(lambda: link.ask("list")["is_going"])
    assert not link.answers()
    with pytest.raises(BackendError, match="being ended"):
        server.start(link, worker(1))
    client.stop()
    client.say("leave", token=client.token(1))
    assert server.process.wait(timeout=30) == 0
    assert not server.report.exists()
    assert not server.base.exists()


BEATS = """
import os, time
from prefect_ft.heartbeat import beat, should_checkpoint
beat(step=1)
print(os.getpid(), "beats", flush=True)
while not should_checkpoint():
    time.sleep(0.01)
print("saves", flush=True)
time.sleep(600)
"""


def test_a_scheduler_that_signals_everybody_twice_leaves_time_to_save(server: Server) -> None:
    """As Slurm does at a preemption: node server, agent and rank get SIGTERM, and get it again; then the agent ends."""
    link = server.link()
    told = server.start(link, worker(), notice_s=60.0)
    client = server.client(link, worker(), told["port"])
    client.start([PYTHON, "-u", "-c", BEATS])
    client.expect_printed("beats\n")
    rank = int(client.printed().split()[0])
    for _ in range(2):
        for pid in (rank, told["pid"], server.process.pid):
            os.kill(pid, signal.SIGTERM)
        wait_for(lambda: link.ask("list")["is_going"])
    client.expect("leaving")
    client.say("checkpoint", token=client.token(1), signal=None)
    client.expect_printed("saves")
    client.stop(grace_s=60.0)
    assert [event["signal"] for event in client.heard if event["ev"] == "exited"] == [signal.SIGTERM]
    client.say("leave", token=client.token(1))
    assert server.process.wait(timeout=30) == 0


def test_told_to_go_by_hand_twice_it_ends_everything(server: Server) -> None:
    link = server.link()
    told = server.start(link, worker(), notice_s=60.0)
    client = server.client(link, worker(), told["port"])
    client.start([PYTHON, "-S", "-u", "-c", WAIT])
    client.expect_printed("up")
    server.process.terminate()
    client.expect("leaving")
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(timeout=30) == 0
    client.hear_to_the_end()


def test_it_leaves_where_the_run_has_given_the_allocation_back(server: Server) -> None:
    link = server.link()
    told = server.start(link, worker())
    client = server.client(link, worker(), told["port"])
    (server.tenure / "released").touch()
    assert server.process.wait(timeout=30) == 0
    client.hear_to_the_end()
    assert not server.report.exists()


def test_without_agents_and_without_an_orchestrator_it_leaves(make_server: MakeServer) -> None:
    server = make_server(orphan_timeout_s=0.3)
    link = server.link()
    server.start(link, worker(), orphan_timeout_s=0.3)
    link.close()
    wait_until_ended(server.process.pid, within_s=20)
    assert server.process.wait() == 0
    assert not server.report.exists()


def test_it_stays_for_an_agent_that_lives_and_for_whoever_is_attached(make_server: MakeServer) -> None:
    server = make_server(orphan_timeout_s=0.05)
    link = server.link()
    server.start(link, worker())
    link.close()
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(timeout=0.3)
    link.ask("end", places=["0-0-1-0"])
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(timeout=0.3)
    link.close()
    assert server.process.wait(timeout=20) == 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"key": "0" * 64}, "wrong key", id="wrong-key"),
        pytest.param({"run_id": "run-2"}, "another run", id="another-run"),
        pytest.param({"system": "n8"}, "it is that of n7", id="another-node"),
    ],
)
def test_who_has_nothing_to_say_here_is_refused(server: Server, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BackendError, match=why):
        server.link(**changes).ask("list")
    assert server.link().answers()


def test_who_does_not_show_the_runs_certificate_is_not_spoken_with(server: Server, tmp_path: Path) -> None:
    stranger = DirectWay(certificates_of(tmp_path).orchestrator(), 0, 5.0)
    link = NodeLink(stranger, NODE, "127.0.0.1", server.port, run_id=RUN, key=KEY, name=NAME)
    with pytest.raises(OSError, match=r"certificate|CERTIFICATE"):
        link.ask("list")
    assert server.link().answers()


@pytest.mark.parametrize(
    ("op", "fields", "why"),
    [
        pytest.param("start", {"place": "../up"}, "not the name of a place", id="path"),
        pytest.param(
            "start", {"place": "0-0-1-0", "config": {}}, "a network", id="no-network", marks=pytest.mark.long
        ),
        pytest.param(
            "start", {"place": "0-0-1-0", "config": {"network": {}, "epoch": "x"}}, "fenced", id="epoch"
        ),
        pytest.param("end", {"places": "0-0-1-0"}, "needs places", id="no-list", marks=pytest.mark.long),
        pytest.param("dance", {}, "unknown order", id="unknown", marks=pytest.mark.long),
    ],
)
def test_bad_requests_change_nothing(server: Server, op: str, fields: dict[str, Any], why: str) -> None:
    link = server.link()
    with pytest.raises(BackendError, match=why):
        link.ask(op, **fields)
    assert link.ask("list")["places"] == []


def test_a_connection_that_broke_is_made_again(server: Server) -> None:
    link = server.link()
    assert link.ask("list")["places"] == []
    assert link._connection is not None
    link._connection.shutdown(socket.SHUT_RDWR)
    assert link.ask("list")["places"] == []


def test_a_new_server_ends_what_a_killed_one_left(make_server: MakeServer) -> None:
    server = make_server()
    link = server.link()
    told = server.start(link, worker())
    client = server.client(link, worker(), told["port"])
    client.start([PYTHON, "-S", "-u", "-c", WAIT])
    client.expect_printed("up")
    pid = told["pid"]
    server.process.kill()
    server.process.wait()
    server.report.unlink()
    assert not link.answers()
    make_server()
    client.hear_to_the_end()
    wait_until_ended(pid, within_s=20)
    assert started(pid) is None


def test_signals_that_announce_the_end_of_a_job_end_nothing(server: Server) -> None:
    link = server.link()
    told = server.start(link, worker())
    client = server.client(link, worker(), told["port"])
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGCONT):
        os.kill(server.process.pid, number)
        os.kill(told["pid"], number)
    assert run(client, "print('here')") == "here\n"
    assert link.answers()


def test_the_variables_of_a_task_are_not_those_of_a_rank() -> None:
    own = {
        "SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[0-3]", "SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_ON_NODE": "4",
        "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "n2", "SLURM_CPU_BIND": "quiet", "SLURM_TASKS_PER_NODE": "1", "PMI_RANK": "2",
        "SLURMD_NODENAME": "n2", "SLURM_SRUN_COMM_PORT": "1", "CUDA_VISIBLE_DEVICES": "0,1",
    }  # fmt: skip
    assert agent_environment(own, {"CUDA_VISIBLE_DEVICES": None, "A": "b"}) == {
        "SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[0-3]", "SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_ON_NODE": "4",
        "A": "b",
        "PREFECT_FT_SIGTERM_IS_NOTICE": "1",
    }  # fmt: skip


def test_agents_directories_are_short_enough_for_sockets_and_those_of_nodes_differ() -> None:
    deep = base_of("run", "17", "n0", "/a" * 60)
    assert deep.startswith("/tmp/")
    assert len({base_of("run", "17", "n0", "/tmp"), base_of("run", "17", "n1", "/tmp"), deep}) == 2
    assert len({base_of("run", tenure, "n0", "/tmp") for tenure in ("17", "17.1")}) == 2
