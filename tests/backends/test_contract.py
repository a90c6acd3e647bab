"""What every backend promises, whatever its workers are: each test runs on each of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from agents import AgentClient, checkpoints, settings
from engine import IMAGE

from prefect_ft.backends.base import Address, Backend, Worker
from prefect_ft.backends.clearing import clear_directory
from prefect_ft.backends.docker.config import DockerInfrastructure
from prefect_ft.backends.kind import Workers
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.backends.process.backend import ProcessBackend
from prefect_ft.config import System
from prefect_ft.run import certificates_of
from tests.conftest import need

PYTHON = "python3"
"""What a worker's image has on its path."""

SYSTEM_ENV = {"s1": {"COLOUR": "blue"}}


def process_backend(directory: Path, changes: Mapping[str, Any], _: pytest.FixtureRequest) -> Backend:
    return ProcessBackend(settings(**changes), directory, SYSTEM_ENV)


def docker_backend(directory: Path, changes: Mapping[str, Any], request: pytest.FixtureRequest) -> Backend:
    return docker_backend_on(request.getfixturevalue("docker_engine"), directory, changes)


def elsewhere_backend(directory: Path, changes: Mapping[str, Any], request: pytest.FixtureRequest) -> Backend:
    """The same engine by TCP and TLS: then nothing is mounted, and agents are reached through it."""
    return docker_backend_on(request.getfixturevalue("docker_engine_tls"), directory, changes)


def docker_backend_on(engine: str, directory: Path, changes: Mapping[str, Any]) -> Backend:
    from prefect_ft.backends.docker.backend import DockerBackend

    systems = [{"name": name, "env": SYSTEM_ENV.get(name, {})} for name in ("s0", "s1")]
    infrastructure = DockerInfrastructure.model_validate(
        {
            "type": "docker",
            "image": IMAGE,
            "systems": systems,
            "engine": engine,
        }
    )
    return DockerBackend(settings(**changes), directory, infrastructure)


def pods_backend(directory: Path, changes: Mapping[str, Any], request: pytest.FixtureRequest) -> Backend:
    """Pods whose agents are reached at their own addresses."""
    return kubernetes_backend("direct", directory, changes, request)


def pods_by_api_backend(
    directory: Path, changes: Mapping[str, Any], request: pytest.FixtureRequest
) -> Backend:
    """Pods whose agents are reached through the cluster's API."""
    return kubernetes_backend("api", directory, changes, request)


def kubernetes_backend(
    reach: str, directory: Path, changes: Mapping[str, Any], request: pytest.FixtureRequest
) -> Backend:
    from prefect_ft.backends.kubernetes.backend import KubernetesBackend

    target = request.getfixturevalue("kubernetes_cluster")
    systems = [{"name": name, "env": SYSTEM_ENV.get(name, {})} for name in ("s0", "s1")]
    infrastructure = KubernetesInfrastructure.model_validate(
        target.infrastructure(systems=systems, reach=reach)
    )
    known = settings(certificates=certificates_of(directory), **changes)
    return KubernetesBackend(known, directory, infrastructure)


@pytest.fixture(scope="module")
def slurm_of_two() -> Iterator[Any]:
    """A cluster whose nodes have the names of these tests' systems."""
    import slurm

    why_not = slurm.why_not()
    need("slurm", why_not is None, why_not or "")
    with slurm.slurm(nodes=2, prefix="s") as cluster:
        yield cluster


@pytest.fixture
def allocated(
    slurm_of_two: Any, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, nobody_left: None
) -> Iterator[Path]:
    """The directory of a run that has an allocation: each backend of a test is another life of its orchestrator."""
    from prefect_ft.backends.kind import Place
    from prefect_ft.backends.slurm.config import SlurmInfrastructure
    from prefect_ft.backends.slurm.holdings import clear
    from prefect_ft.backends.slurm.lending import Lending

    monkeypatch.setenv("SLURM_CONF", str(slurm_of_two.conf))
    root, directory = runtime_dir / "root", runtime_dir / "run-1"
    root.mkdir()
    directory.mkdir(exist_ok=True)
    known = settings()
    place = Place(
        run_id=known.run_id,
        key=known.key,
        job="job",
        model_dir=runtime_dir,
        run_root=root,
        directory=directory,
    )
    tenure = Lending(SlurmInfrastructure(type="slurm", nodes=2), place).tenure(lambda: False)
    assert tenure is not None
    assert tenure.systems == ("s0", "s1")
    yield root
    clear(directory)
    slurm_of_two.clean()


def slurm_backend(directory: Path, changes: Mapping[str, Any], request: pytest.FixtureRequest) -> Backend:
    from prefect_ft.backends.slurm.backend import SlurmBackend
    from prefect_ft.backends.slurm.config import SlurmInfrastructure

    root = request.getfixturevalue("allocated")
    known = settings(certificates=certificates_of(root), **changes)
    return SlurmBackend(known, SlurmInfrastructure(type="slurm", nodes=2), root, system_env=SYSTEM_ENV)


def rooms_backend(directory: Path, changes: Mapping[str, Any], _: pytest.FixtureRequest) -> Backend:
    """One that another package adds."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "support" / "rooms"))
    try:
        import rooms
    finally:
        del sys.path[0]
    systems = [System(name=name, env=SYSTEM_ENV.get(name, {})) for name in ("s0", "s1")]
    infrastructure = rooms.Rooms(type="rooms", house=str(directory / "house"), systems=tuple(systems))
    workers = Workers(
        settings=settings(**changes),
        infrastructure=infrastructure,
        directory=directory,
        run_root=directory,
        env={},
        system_env={system.name: system.env for system in systems},
        system_locks={},
        checkpoints=None,
        files={},
    )
    made: Backend = rooms.KIND.backend(workers)
    return made


MakeBackend = Callable[[Path, Mapping[str, Any], pytest.FixtureRequest], Backend]
BACKENDS: dict[str, MakeBackend] = {
    "process": process_backend,
    "docker": docker_backend,
    "docker-elsewhere": elsewhere_backend,
    "kubernetes": pods_backend,
    "kubernetes-by-api": pods_by_api_backend,
    "of-another-package": rooms_backend,
    "slurm": slurm_backend,
}


@dataclass
class Under:
    """The backend under test, and what was made with it."""

    make: Callable[..., Backend]
    backend: Backend
    clients: list[AgentClient] = field(default_factory=list)
    created: list[Worker] = field(default_factory=list)

    def create(self, *numbers: int, decision: int = 0) -> list[AgentClient]:
        """Create workers and attach to each."""
        self.created += workers(*numbers, decision=decision)
        return list(map(self.attach, self.backend.create(workers(*numbers, decision=decision))))

    def attach(self, address: Address, epoch: int = 1) -> AgentClient:
        client = AgentClient(address, epoch)
        self.clients.append(client)
        assert client.attach()["ev"] == "attached"
        return client


def workers(*numbers: int, decision: int = 0) -> list[Worker]:
    return [Worker(number=number, system=f"s{number}", epoch=1, decision=decision) for number in numbers]


def run(client: AgentClient, code: str, attempt: int = 1, **env: str) -> str:
    """What a rank prints that runs to its end."""
    assert client.start([PYTHON, "-u", "-c", code], attempt, **env)["ev"] == "started"
    client.expect("exited", code=0)
    client.stop(attempt)
    pieces = [event for event in client.heard if event["ev"] == "output" and event["token"][2] == attempt]
    return "".join(piece["text"] for piece in pieces)


LONG = {"docker-elsewhere", "kubernetes-by-api"}
"""Seconds for each test; tests/docker has a quick one of whole runs on an engine elsewhere."""


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.long, pytest.mark.timeout(300)] if name in LONG else [])
        for name in BACKENDS
    ]
)
def under(request: pytest.FixtureRequest, runtime_dir: Path, nobody_left: None) -> Iterator[Under]:
    made: list[Backend] = []

    own = runtime_dir / "run-1"
    own.mkdir(exist_ok=True)

    def make(directory: Path = own, **changes: Any) -> Backend:
        made.append(BACKENDS[request.param](directory, changes, request))
        return made[-1]

    under = Under(make, make())
    yield under
    under.backend.destroy([*workers(0, 1), *under.created])
    for each in (*under.clients, *made):
        each.close()
    clear_directory(own)


def test_each_worker_has_an_agent_that_knows_who_it_is(under: Under) -> None:
    attached = [client.expect_attached() for client in under.create(0, 1)]
    assert [(event["worker"], event["system"]) for event in attached] == [(0, "s0"), (1, "s1")]
    assert all(event["over"] and event["running"] == [] for event in attached)


def test_a_worker_has_its_systems_environment(under: Under) -> None:
    code = "import os; print(os.environ.get('COLOUR'))"
    assert [run(client, code) for client in under.create(0, 1)] == ["None\n", "blue\n"]


def test_scripts_find_the_heartbeat_in_every_worker(under: Under) -> None:
    (client,) = under.create(0)
    run(client, "from prefect_ft import heartbeat; heartbeat.beat(step=3)")
    assert client.expect("beat")["step"] == 3


def test_workers_reach_each_other_at_the_master(under: Under) -> None:
    addresses = under.backend.create(workers(0, 1))
    first, second = map(under.attach, addresses)
    host, port = addresses[0].host, str(first.expect_attached()["port"])
    serve = (
        f"import socket; s = socket.create_server(('', {port})); print('up'); s.accept()[0].sendall(b'hello')"
    )
    reach = f"import socket; print(socket.create_connection(({host!r}, {port})).recv(5).decode())"
    first.start([PYTHON, "-u", "-c", serve])
    first.expect_printed("up")
    assert run(second, reach) == "hello\n"
    first.expect("exited", code=0)


def test_only_worker_0_looks_for_checkpoints(under: Under, tmp_path: Path) -> None:
    under.backend = under.make(checkpoints=checkpoints(tmp_path))
    answers = []
    for client in under.create(0, 1):
        client.say("choose", token=[1, 0, 1], limit=None, avoid=[], deaths=[])
        answers.append(client.expect("chosen", "refused")["ev"])
    assert answers == ["chosen", "refused"]


PLACE = (
    "import os, tempfile; print(tempfile.gettempdir()); open(tempfile.gettempdir() + '/mine', 'a').write('x')"
)
COUNT = (
    "import glob, tempfile; print([len(open(p).read()) for p in glob.glob(tempfile.gettempdir() + '/mine')])"
)


def test_what_a_worker_keeps_lives_as_long_as_it_does(under: Under) -> None:
    (client,) = under.create(0)
    assert run(client, PLACE, attempt=1) == run(client, PLACE, attempt=2)
    assert run(client, COUNT, attempt=3) == "[2]\n"
    under.backend.destroy(workers(0))
    (client,) = under.create(0, decision=2)
    assert run(client, COUNT, attempt=4) == "[]\n"


WAIT = "import os, signal; os.write(1, b'up\\n'); signal.pause()"


def test_destroying_a_worker_ends_all_that_runs_in_it(under: Under) -> None:
    """`nobody_left` looks whether it is so."""
    (client,) = under.create(0)
    client.start([PYTHON, "-u", "-c", f"import os\nif os.fork() == 0: os.setsid()\n{WAIT}"], ranks=2)
    client.expect_printed("up\nup", rank=0)
    client.expect_printed("up\nup", rank=1)
    under.backend.destroy(workers(0))
    client.hear_to_the_end()


def test_destroying_one_worker_leaves_the_others_alone(under: Under) -> None:
    first, second = under.create(0, 1)
    under.backend.destroy(workers(0))
    first.hear_to_the_end()
    assert run(second, "print('here')") == "here\n"


def test_destroying_is_idempotent_and_takes_what_never_was(under: Under) -> None:
    under.create(0)
    for _ in range(2):
        under.backend.destroy(workers(0, 1))
        assert under.backend.find() == []


def test_destroying_a_worker_whose_agent_has_left(under: Under) -> None:
    (client,) = under.create(0)
    client.say("leave", token=[1, 0, 1])
    client.hear_to_the_end()
    under.backend.destroy(workers(0))
    assert under.backend.find() == []


def test_creating_is_idempotent(under: Under) -> None:
    (client,) = under.create(0)
    again = under.backend.create(workers(0, 1))
    other = under.attach(again[0], epoch=2)
    assert other.expect_attached()["pid"] == client.expect_attached()["pid"]


def test_what_is_exchanged_is_gone_and_there(under: Under) -> None:
    (old,) = under.create(0)
    new = Worker(number=0, system="s0", epoch=1, decision=2)
    under.created.append(new)
    (address,) = under.backend.exchange(workers(0), [new])
    old.hear_to_the_end()
    assert run(under.attach(address), "print('here')") == "here\n"
    assert [found.worker for found in under.backend.find()] == [new]


def test_another_life_of_the_orchestrator_can_end_what_it_finds(under: Under) -> None:
    (client,) = under.create(0)
    client.start([PYTHON, "-u", "-c", WAIT])
    client.expect_printed("up")
    under.make().destroy(workers(0))
    client.hear_to_the_end()


def test_another_life_of_the_orchestrator_can_attach_to_what_it_finds(under: Under) -> None:
    address = under.backend.create(workers(0))[0]
    client = under.attach(address)
    client.start([PYTHON, "-u", "-c", WAIT])
    client.expect_printed("up")
    client.close()
    later = under.attach(address, epoch=2)
    assert later.expect_attached()["running"] == [0]
    assert later.stop()["ev"] == "stopped"


def test_nothing_is_known_of_how_a_worker_ended_that_lives(under: Under) -> None:
    under.create(0)
    assert under.backend.evidence(workers(0)[0], is_gone=False) is None


def test_another_life_of_the_orchestrator_finds_what_is_there(under: Under) -> None:
    under.create(0, 1)
    found = under.make().find()
    assert [(each.worker, each.result) for each in found] == [(worker, None) for worker in workers(0, 1)]
    under.backend.destroy(workers(0))
    assert [each.worker for each in under.make().find()] == workers(1)


@pytest.mark.parametrize("under", ["docker", "docker-elsewhere", "kubernetes"], indirect=True)
def test_another_life_on_another_machine_can_clear_what_it_finds(under: Under, tmp_path: Path) -> None:
    """It has none of the files of the first one, and what it only found counts as its own."""
    (client,) = under.create(0)
    second, third = tmp_path / "second" / "run-1", tmp_path / "third" / "run-1"
    for each in (second, third):
        each.mkdir(parents=True)
    assert [each.worker for each in under.make(second).find()] == workers(0)
    clear_directory(second)
    assert under.make(third).find() == []
    client.hear_to_the_end()


def test_a_system_that_is_there_answers(under: Under) -> None:
    assert under.backend.answers("s0") is True
