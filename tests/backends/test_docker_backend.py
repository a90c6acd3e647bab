"""What only containers do: facts of their ends, users, privileges, mounts, engines that go away."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agents import KEY, AgentClient, settings
from engine import IMAGE, engine
from eventual import eventually

from prefect_ft.backends.base import Worker
from prefect_ft.backends.clearing import clear_directory
from prefect_ft.backends.docker import backend as module
from prefect_ft.backends.docker.backend import DockerBackend
from prefect_ft.backends.docker.config import DockerInfrastructure
from prefect_ft.backends.docker.engine import Client, connect
from prefect_ft.errors import BackendError

WORKER = Worker(number=0, system="s0", epoch=1, decision=0)
WAIT = "import os, signal; os.write(1, b'up\\n'); signal.pause()"


@dataclass
class Containers:
    """Backends on the tests' engine, and the engine's own word of what they made."""

    url: str
    directory: Path
    api: Client
    clients: list[AgentClient]

    def backend(
        self,
        *,
        binds: tuple[str, ...] = (),
        private: Path | None = None,
        removal_grace_s: float | None = None,
        **fields: Any,
    ) -> DockerBackend:
        infrastructure = DockerInfrastructure.model_validate(
            {"type": "docker", "image": IMAGE, "engine": self.url, "systems": ["s0", "s1"], **fields}
        )
        return DockerBackend(
            settings(),
            self.directory,
            infrastructure,
            binds=binds,
            private=private,
            removal_grace_s=removal_grace_s,
        )

    def worker(self, backend: DockerBackend | None = None, **fields: Any) -> AgentClient:
        """Create the worker and attach to it."""
        backend = backend or self.backend(**fields)
        self.clients.append(AgentClient(backend.create([WORKER])[0]))
        self.clients[-1].attach()
        return self.clients[-1]

    def run(self, client: AgentClient, code: str, attempt: int = 1, **env: str) -> str:
        client.start(["python3", "-u", "-c", code], attempt, **env)
        client.expect("exited")
        client.stop(attempt)
        return client.printed().decode()

    @property
    def names(self) -> list[str]:
        """The containers of this test's run."""
        found = self.api.containers(all=True, filters={"label": "prefect-ft.run=run-1"})
        return sorted(each["Names"][0].lstrip("/") for each in found)

    @property
    def inspected(self) -> dict[str, Any]:
        (name,) = self.names
        return dict(self.api.inspect_container(name))


@pytest.fixture
def containers(docker_engine: str, runtime_dir: Path, nobody_left: None) -> Iterator[Containers]:
    directory = runtime_dir / "run-1"
    directory.mkdir()
    api = connect(docker_engine)
    made = Containers(docker_engine, directory, api, [])
    yield made
    for client in made.clients:
        client.close()
    clear_directory(directory)
    assert eventually(lambda: made.names, []) == []
    api.close()


def test_the_runs_key_is_nowhere_in_what_an_engine_tells(containers: Containers) -> None:
    containers.worker()
    assert KEY not in json.dumps(containers.inspected)
    (config,) = containers.directory.glob("*/agent.json")
    assert (KEY in config.read_text(), config.stat().st_mode & 0o777) == (False, 0o600)


def test_a_rank_finds_nothing_where_the_runs_own_directory_is_mounted(
    containers: Containers, tmp_path: Path
) -> None:
    (tmp_path / ".prefect-ft" / "r1").mkdir(parents=True)
    (tmp_path / ".prefect-ft" / "r1" / "key").write_text("secret")
    backend = containers.backend(private=tmp_path / ".prefect-ft", volumes=[f"{tmp_path}:/model"])
    client = containers.worker(backend)
    code = "import os; print(os.listdir('/model'), os.listdir('/model/.prefect-ft'))"
    assert containers.run(client, code) == "['.prefect-ft'] []\n"
    assert (tmp_path / ".prefect-ft" / "r1" / "key").read_text() == "secret"


def test_an_engine_is_asked_for_the_image_once_for_all_workers(
    containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `pull: always` each time is a pull."""
    asked: list[str] = []
    interpreter = module.engine.interpreter

    def counted(client: Client, url: str, infrastructure: DockerInfrastructure) -> Any:
        asked.append(url)
        return interpreter(client, url, infrastructure)

    monkeypatch.setattr("prefect_ft.backends.docker.engine.interpreter", counted)
    containers.backend().create([WORKER, Worker(number=1, system="s1", epoch=1, decision=0)])
    assert asked == [containers.url]


def test_a_worker_sees_its_own_directory_and_no_other(containers: Containers) -> None:
    look = f"import os; print(sorted(os.listdir({str(containers.directory)!r})))"
    backend = containers.backend()
    backend.create([Worker(number=1, system="s1", epoch=1, decision=0)])
    assert containers.run(containers.worker(backend), look) == "['0-0-1-0']\n"


def test_the_agents_code_cannot_be_written_to(containers: Containers) -> None:
    code = "import prefect_ft.heartbeat as h; open(h.__file__, 'a')"
    assert "Read-only file system" in containers.run(containers.worker(), code)


def test_the_agent_is_the_first_process_and_leaves_no_zombie(containers: Containers) -> None:
    client = containers.worker()
    orphan = (
        "import os, time\nif os.fork() == 0:\n    if os.fork() == 0: time.sleep(0.05)\n    os._exit(0)\n"
        "print(os.getppid()); time.sleep(0.3)"
    )
    assert containers.run(client, orphan) == "1\n"
    listed = (
        "import os; pids = [p for p in os.listdir('/proc') if p.isdigit()]; "
        "print([p for p in pids if ' Z ' in open(f'/proc/{p}/stat').read()])"
    )
    client.start(["python3", "-c", listed], 2)
    client.expect("exited", code=0)
    client.stop(2)
    assert [event["text"] for event in client.heard if event["ev"] == "output"][-1] == "[]\n"


def test_stopping_a_container_by_hand_ends_it_at_once(containers: Containers) -> None:
    client = containers.worker()
    client.start(["python3", "-u", "-c", WAIT])
    client.expect_printed("up")
    began = time.monotonic()
    containers.api.stop(containers.names[0], timeout=30)
    assert time.monotonic() - began < 10
    client.hear_to_the_end()
    assert eventually(lambda: containers.inspected["State"]["Running"], False) is False
    assert containers.inspected["State"]["ExitCode"] == 0


def test_a_user_other_than_root(containers: Containers) -> None:
    client = containers.worker(user="65534:65534")
    assert containers.run(client, "import os; print(os.getuid(), os.getgid())") == "65534 65534\n"


def test_no_process_gains_privileges(containers: Containers) -> None:
    told = "print([line for line in open('/proc/self/status') if line.startswith('NoNewPrivs')])"
    assert "1" in containers.run(containers.worker(), told)


def test_binds_and_volumes_are_there(containers: Containers, tmp_path: Path) -> None:
    (tmp_path / "ck").mkdir()
    backend = containers.backend(binds=(f"{tmp_path}/ck:{tmp_path}/ck",), volumes=[f"{tmp_path}:/data:ro"])
    containers.run(
        containers.worker(backend), f"open('{tmp_path}/ck/x', 'w').write('in'); open('/data/y', 'w')"
    )
    assert (tmp_path / "ck" / "x").read_text() == "in"
    assert not (tmp_path / "y").exists()


def test_the_images_directory_is_where_commands_run(containers: Containers) -> None:
    client = containers.worker()
    client.start(["python3", "-c", "import os; print(os.getcwd())"], cwd=".")
    client.expect("exited", code=0)
    client.expect_printed("/tmp\n")


def test_python_is_the_agents_where_an_image_has_none_of_that_name(containers: Containers) -> None:
    client = containers.worker()
    client.start(["python", "-c", "import sys; print(sys.version_info[0])"], PATH="/nowhere")
    client.expect("exited", code=0)
    client.expect_printed("3\n")


def test_shared_memory_and_files_live_through_a_restart_in_place(containers: Containers) -> None:
    client = containers.worker(shm_size="16m")
    write = "open('/dev/shm/x', 'w').write('kept'); open('/x', 'w').write('kept')"
    containers.run(client, write)
    read = (
        "import os; s = os.statvfs('/dev/shm'); "
        "print(open('/dev/shm/x').read(), open('/x').read(), s.f_blocks * s.f_frsize >> 20)"
    )
    client.start(["python3", "-c", read], 2)
    client.expect("exited", code=0)
    client.stop(2)
    assert [event["text"] for event in client.heard if event["ev"] == "output"] == ["kept kept 16\n"]


def test_a_command_that_fails_at_once_has_its_words_told(containers: Containers) -> None:
    with pytest.raises(BackendError, match=r"the engine at unix://.* refused: .*no-such-network") as caught:
        containers.backend(network="no-such-network").create([WORKER])
    assert caught.value.system == "s0"
    assert eventually(lambda: containers.names, []) == []


# -- facts ------------------------------------------------------------------------------------------


def test_a_container_that_somebody_removed(containers: Containers) -> None:
    backend = containers.backend()
    client = containers.worker(backend)
    containers.api.remove_container(containers.names[0], force=True)
    client.hear_to_the_end()
    evidence = backend.evidence(WORKER, is_gone=True)
    assert evidence is not None
    assert (evidence.rule, evidence.text) == ("container-removed", "its container was removed from outside")


def test_a_container_that_was_killed(containers: Containers) -> None:
    backend = containers.backend()
    client = containers.worker(backend)
    containers.api.kill(containers.names[0])
    client.hear_to_the_end()
    evidence = backend.evidence(WORKER, is_gone=True)
    assert evidence is not None
    assert (evidence.rule, evidence.text) == ("container-ended", "its container has ended with exit code 137")


def test_memory_that_was_used_up(containers: Containers) -> None:
    backend = containers.backend(resources={"memory": "64m"}, create={"HostConfig": {"MemorySwap": 64 << 20}})
    client = containers.worker(backend)
    assert backend.evidence(WORKER, is_gone=False) is None
    client.start(["python3", "-c", "x = b'x' * (256 << 20)"])
    assert client.expect("exited")["signal"] == 9
    deadline = time.monotonic() + 10
    while (evidence := backend.evidence(WORKER, is_gone=False)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert evidence is not None
    assert evidence.rule == "container-oom"


# -- removal ----------------------------------------------------------------------------------------


def test_a_removal_that_takes_long_goes_on_in_the_background(
    containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = containers.backend(removal_grace_s=0.05)
    containers.worker(backend)
    gate, remove = threading.Event(), module.engine.remove

    def slow(*arguments: Any) -> None:
        gate.wait(30)
        remove(*arguments)

    monkeypatch.setattr(module.engine, "remove", slow)
    backend.destroy([WORKER])
    assert len(containers.names) == 1
    gate.set()
    for thread in threading.enumerate():
        if thread.name.startswith("prefect-ft-run-1"):
            thread.join(30)
    assert eventually(lambda: containers.names, []) == []


def test_anonymous_volumes_go_with_a_worker(containers: Containers) -> None:
    before = containers.api.volumes()["Volumes"]
    backend = containers.backend(create={"Volumes": {"/scratch": {}}})
    containers.worker(backend)
    assert len(containers.api.volumes()["Volumes"] or []) == len(before or []) + 1
    backend.destroy([WORKER])
    assert eventually(lambda: containers.api.volumes()["Volumes"], before) == before


def test_what_a_dead_run_left_is_removed_by_its_directory(containers: Containers) -> None:
    client = containers.worker()
    client.start(["python3", "-u", "-c", WAIT])
    client.expect_printed("up")
    clear_directory(containers.directory)
    assert eventually(lambda: containers.names, []) == []
    assert not containers.directory.exists()


# -- engines ----------------------------------------------------------------------------------------


@pytest.fixture
def mortal_engine(docker_engine: str) -> Iterator[Any]:
    """An engine that may be killed: a second one on this machine."""
    if os.environ.get("PREFECT_FT_TEST_ENGINE") and os.getuid() != 0:
        pytest.skip("needs docker: a second engine is started as root")
    with engine() as second:
        second.make_image()
        yield second


def test_an_engine_that_dies_takes_no_rank_along_and_is_a_lost_system(
    containers: Containers, mortal_engine: Any
) -> None:
    systems = ["s0", {"name": "s1", "engine": mortal_engine.url}]
    backend = containers.backend(systems=systems)
    worker = Worker(number=0, system="s1", epoch=1, decision=0)
    client = AgentClient(backend.create([worker])[0])
    containers.clients.append(client)
    client.attach()
    assert [backend.answers(name) for name in ("s0", "s1", "s9")] == [True, True, False]
    mortal_engine.kill()
    assert [backend.answers(name) for name in ("s0", "s1")] == [True, False]
    client.start(["python3", "-u", "-c", WAIT])
    client.expect_printed("up")
    evidence = backend.evidence(worker, is_gone=True)
    assert evidence is not None
    assert evidence.rule == "engine-away"
    backend.destroy([worker])
    client.hear_to_the_end()
    with pytest.raises(BackendError) as caught:
        backend.create([worker])
    assert caught.value.system == "s1"
