"""deployments/compose.yaml on a real engine: it comes up, runs the quickstart, survives its worker's death and goes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import compose_images
import engine
import postgres
import pytest
import yaml
from deaths import journals, of_type

from prefect_ft.backends.docker.engine import connect
from tests.conftest import need

ROOT = Path(__file__).parents[2]
API = "http://127.0.0.1:4200/api"
UP_S, RUN_S = 300.0, 400.0
PROJECT = "prefect-ft-test"
INSTALLS = r"pip install [^&]*&& "
"""The images hold what the file has pip install: there need be no index."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def why_not() -> str | None:
    for reason in (engine.why_not(), postgres.why_not()):
        if reason is not None:
            return reason
    if shutil.which("docker-compose") is None:
        return "docker-compose is not installed"
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind(("127.0.0.1", 4200))
            return None
    return "port 4200 is in use"


class Composed:
    """The project of the file in a checkout of its own."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory, self._url = directory, url
        for name in ("flows", "deployments"):
            shutil.copytree(ROOT / name, directory / name)
        self._file = directory / "deployments" / "compose.yaml"
        services = yaml.safe_load(self._file.read_text())["services"]
        without = {
            name: {"command": re.sub(INSTALLS, "", services[name]["command"])} for name in ("setup", "worker")
        }
        self._override = directory / "override.yaml"
        self._override.write_text(yaml.safe_dump({"version": "3.9", "services": without}))

    def __call__(self, *words: str) -> str:
        """Run a command of compose to its end."""
        files = (f"--file={self._file}", f"--file={self._override}")
        done = subprocess.run(
            ["docker-compose", f"--project-name={PROJECT}", *files, *words],
            env={**os.environ, "DOCKER_HOST": self._url, "COMPOSE_HTTP_TIMEOUT": "300"},
            capture_output=True, text=True, timeout=UP_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def logs(self) -> str:
        return self("logs", "--no-color", "--tail=40")


def post(path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        API + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def automations() -> dict[str, str]:
    return {each["name"]: each["updated"] for each in post("/automations/filter", {})}


def wait_until(happened: Callable[[], object], composed: Composed) -> None:
    deadline = time.monotonic() + RUN_S
    while not happened():
        assert time.monotonic() < deadline, composed.logs()
        signal.sigtimedwait([], 0.2)


def state_of(flow_run: str) -> str:
    (found,) = post("/flow_runs/filter", {"flow_runs": {"id": {"any_": [flow_run]}}})
    return str(found["state_name"])


def begun(composed: Composed) -> str:
    told = composed("exec", "-T", "worker", "prefect", "deployment", "run", "train-flow/default")
    (found,) = re.findall(r"UUID: ([0-9a-f-]{36})", told)
    return str(found)


@pytest.fixture(scope="module")
def composed(docker_engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    reason = why_not()
    need("compose", reason is None, reason or "")
    with closing(connect(docker_engine)) as client:
        compose_images.make_images(client)
        before = left(client)
        made = Composed(tmp_path_factory.mktemp("composed"), docker_engine)
        try:
            made("up", "--detach", "--no-build")
            yield made
        finally:
            made("down", "--volumes")
        assert left(client) == before


def left(client: Any) -> dict[str, list[str]]:
    return {
        "containers": sorted(each["Id"] for each in client.containers(all=True)),
        "networks": sorted(each["Id"] for each in client.networks()),
        "volumes": sorted(each["Name"] for each in client.volumes()["Volumes"] or []),
    }


def test_the_example_completes_through_the_containers_worker(composed: Composed) -> None:
    flow_run = begun(composed)
    wait_until(lambda: state_of(flow_run) in ("Completed", "Failed", "Crashed"), composed)
    assert state_of(flow_run) == "Completed", composed.logs()
    shutil.rmtree(composed.directory / "runs")


def test_the_worker_is_killed_and_the_run_comes_back(composed: Composed, docker_engine: str) -> None:
    """Its flow process and its ranks die with the container; setup is not done again."""
    flow_run, before = begun(composed), automations()
    assert len(before) == 3
    model_dir = composed.directory / "runs" / "quickstart"
    wait_until(lambda: list((model_dir / "pretrain").glob("step-*.npz")), composed)
    composed("kill", "-s", "SIGKILL", "worker")
    composed("start", "worker")
    wait_until(lambda: state_of(flow_run) in ("Completed", "Failed"), composed)
    assert state_of(flow_run) == "Completed", composed.logs()
    assert automations() == before
    rules = [line["rule"] for lines in journals(model_dir).values() for line in of_type(lines, "decision")]
    assert rules.count("completed") == 2, rules
