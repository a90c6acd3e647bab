"""Prefect's temporary server, which a run has where no API is configured: it ends with its owner and not before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from agents import processes_of, wait_until_ended
from databases import copied

from prefect_ft.supervisor.stopping import ONE_REQUEST_S

JOB = """
name: test
model_dir: model
autorestart: {{max_num_restarts: 3}}
stop_grace_s: {grace}
phases:
  - name: train
    command: [{python}, -S, -c, {code}]
    checkpoints: {{path: ck}}
"""

SAYS_BYE = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("bye"), sys.exit(0)))
open("up", "w").close()
while True: signal.pause()
"""

IGNORES = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: open("asked", "w").close())
open("up", "w").close()
while True: signal.pause()
"""

WAITS = """
import os, time
open("up", "w").close()
while not os.path.exists("ready"): time.sleep(0.01)
"""

OWN_FLOW = """
from pathlib import Path
from prefect import flow
from prefect_ft import run_phase
from prefect_ft.config import load_job
@flow
def mine() -> str:
    return run_phase(load_job(Path("job.yaml"))).status
assert mine() == "cancelled"
"""

TRAIN_FLOW = """
from pathlib import Path
from prefect_ft import train_flow
assert train_flow(Path("job.yaml"), return_state=True).is_cancelled()
"""

# Its run ends while an event is about to be sent; the server is gone when that is tried.
LATE_EVENT = """
import asyncio, atexit, sys, threading
from prefect_ft.cli import main, prefect_view
ending, tried = threading.Event(), threading.Event()

def follow(job):
    from prefect import flow  # sets up Prefect's logging
    from prefect._internal.concurrency.threads import get_global_loop
    from prefect.events import emit_event, worker
    class Gone(worker.NullEventsClient):
        def __init__(self):
            raise ConnectionError
    worker.EventsWorker.set_client_override(Gone)
    atexit.register(lambda: (ending.set(), tried.wait()))
    open("ready", "w").close()
    ending.wait()
    open("ending", "w").close()
    try:
        emit_event("late", {"prefect.resource.id": "late"})
    finally:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), get_global_loop().loop).result()
        tried.set()

prefect_view.PROMPT_S = prefect_view.END_S = 0
prefect_view._follow = follow
sys.argv[1:] = ["run", "job.yaml"]
sys.exit(main())
"""

OWNERS = {
    "late-event": ["-c", LATE_EVENT],
    "command": ["-m", "prefect_ft.cli", "run", "job.yaml"],
    "train-flow": ["-c", TRAIN_FLOW],
    "own-flow": ["-c", OWN_FLOW],
}

LIMIT_S = 60.0


class Owner:
    """A process that trains, in a process group of its own, and the temporary server that it has started."""

    def __init__(self, directory: Path, arguments: list[str], env: dict[str, str]) -> None:
        self.directory = directory
        with (directory / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *arguments], cwd=directory, env=env, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

    def await_file(self, name: str) -> None:
        while not (self.directory / name).exists():
            assert self.process.poll() is None, self.output()
            time.sleep(0.01)

    def output(self) -> str:
        return (self.directory / "output").read_text()

    def signal_group(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def server(self) -> psutil.Process:
        """Find the process that serves Prefect's API; it is started beside the ranks."""
        while True:
            assert self.process.poll() is None, self.output()
            for child in psutil.Process(self.process.pid).children():
                with suppress(psutil.NoSuchProcess):
                    if {"prefect_ft.prefect_edge.embedded", "uvicorn"} & set(child.cmdline()):
                        return child
            time.sleep(0.05)

    def close(self) -> None:
        """End what a test that failed has left."""
        for child in [*psutil.Process(self.process.pid).children(), self.process]:
            child.kill()
        self.process.wait()


Begin = Callable[..., Owner]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Path:
    """A PREFECT_HOME with a database."""
    home = tmp_path_factory.mktemp("home")
    copied(prefect_home, home)
    return home


@pytest.fixture
def begin(tmp_path: Path, home: Path, runtime_dir: Path) -> Iterator[Begin]:
    """Start a process that trains without an API, and wait until its rank is up."""
    unset = ("PREFECT_API_URL", "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL")
    env = {name: value for name, value in os.environ.items() if name not in unset}
    env |= {"PREFECT_HOME": str(home), "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180"}
    owners = []

    def start(owner: str, code: str, grace: float) -> Owner:
        job = JOB.format(python=sys.executable, code=json.dumps(code), grace=grace)
        (tmp_path / "job.yaml").write_text(job)
        owners.append(Owner(tmp_path, OWNERS[owner], env))
        owners[-1].await_file("up")
        return owners[-1]

    yield start
    for owner in owners:
        if owner.process.poll() is None:
            owner.close()
    for pid in processes_of(runtime_dir):
        os.kill(pid, signal.SIGKILL)


def run_log(directory: Path) -> str:
    return next(directory.glob("model/*_restartable/run.log")).read_text()


@pytest.mark.parametrize(
    ("owner", "number"),
    [
        ("command", signal.SIGINT),
        pytest.param("command", signal.SIGTERM, marks=pytest.mark.long),
        pytest.param("train-flow", signal.SIGINT, marks=pytest.mark.long),
        pytest.param("own-flow", signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_a_signal_to_the_whole_group_cancels_as_one_to_the_owner_does(
    begin: Begin, tmp_path: Path, runtime_dir: Path, owner: str, number: int
) -> None:
    process = begin(owner, SAYS_BYE, 30)
    server = process.server()
    process.signal_group(number)
    code = process.process.wait(LIMIT_S)
    wait_until_ended(server.pid)
    assert "bye" in run_log(tmp_path)
    assert "Traceback" not in process.output()
    assert "EventsWorker" not in process.output()  # which says what Prefect could not be told
    assert (
        json.loads(next(tmp_path.glob("model/*_restartable/summary.json")).read_text())["status"]
        == "cancelled"
    )
    for pid in processes_of(runtime_dir):
        wait_until_ended(pid)
    assert code == (3 if owner == "command" else 0)


def test_what_can_no_longer_be_sent_when_a_command_ends_is_said_once(begin: Begin, tmp_path: Path) -> None:
    process = begin("late-event", WAITS, 30)
    assert process.process.wait(LIMIT_S) == 0
    assert (tmp_path / "ending").exists()
    assert "the run is not shown in Prefect" in process.output()
    assert "EventsWorker" not in process.output()
    assert "Traceback" not in process.output()


@pytest.mark.long
def test_more_of_ctrl_c_in_a_terminal_ends_the_grace_and_the_command(
    begin: Begin, tmp_path: Path, runtime_dir: Path
) -> None:
    process = begin("command", IGNORES, 600)
    server = process.server()
    process.signal_group(signal.SIGINT)
    process.await_file("asked")
    while (
        process.process.poll() is None
    ):  # and a third one, and so on, until nothing is there to be interrupted
        time.sleep(ONE_REQUEST_S)
        process.signal_group(signal.SIGINT)
    assert process.process.returncode == 3
    wait_until_ended(server.pid)
    assert "Traceback" not in process.output()
    assert processes_of(runtime_dir) == {}


@pytest.mark.parametrize(
    "owner", ["command", *(pytest.param(each, marks=pytest.mark.long) for each in ("train-flow", "own-flow"))]
)
def test_the_server_of_an_owner_that_is_killed_ends_and_ranks_do_not(
    begin: Begin, runtime_dir: Path, owner: str
) -> None:
    process = begin(owner, SAYS_BYE, 30)
    server, trains = process.server(), processes_of(runtime_dir)
    process.process.kill()
    process.process.wait()
    wait_until_ended(server.pid)
    assert set(processes_of(runtime_dir)) == set(trains) - {server.pid, process.process.pid}


def test_a_server_whose_owner_ends_while_it_is_starting_ends(home: Path) -> None:
    code = (
        "import os, subprocess, sys; server = subprocess.Popen("
        "[sys.executable, '-m', 'prefect_ft.prefect_edge.embedded', str(os.getpid()), '1']); "
        "print(server.pid, flush=True); input()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PREFECT_HOME": str(home)},
    )  # fmt: skip
    with owner:
        assert owner.stdout is not None
        server = int(owner.stdout.readline())
        owner.kill()
    wait_until_ended(server)


def test_where_an_api_is_configured_no_server_is_loaded() -> None:
    code = "import sys, prefect_ft.flows; print('prefect.server.api.server' in sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PREFECT_API_URL": "http://127.0.0.1:1/api"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert process.stdout.strip() == "False"


def test_a_server_that_was_stopped_stays_the_one_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What still has something to tell at the end would else start Prefect's own, which outlives the process."""
    from prefect.server.api.server import SubprocessASGIServer

    from prefect_ft.prefect_edge.embedded.owned import OwnedServer

    monkeypatch.setattr(SubprocessASGIServer, "_instances", {})
    OwnedServer().stop()
    assert isinstance(SubprocessASGIServer(), OwnedServer)
