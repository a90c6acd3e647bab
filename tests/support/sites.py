"""A checkout of its own with a Prefect server and process workers; commands run as a user would type them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Any

import preloaded
from databases import copied
from ports import free_port

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120.0

ARMED_FLOW = """
import sys
from pathlib import Path
sys.path.insert(0, {support!r})
import mortal
from prefect_ft import train_flow
from prefect_ft.observe import _observers
mortal.arm(Path.cwd() / "job.yaml")
_observers.set((*_observers.get(), mortal.watch))
"""
"""flows/train.py of a site: the real flow, which may die as DEATH says."""


class Site:
    """`directory` is the checkout; `start_server` and `start_worker` are called again after a kill.

    `database` is the URL of the one in which the server stores; None: SQLite, in the checkout, begun as a copy of the
    one in the home `prepared`, if that is given. The server listens at `host`.
    """

    def __init__(
        self,
        directory: Path,
        runtime: Path,
        database: str | None = None,
        host: str = "127.0.0.1",
        prepared: Path | None = None,
    ) -> None:
        self.directory, self.host = directory, host
        for name in ("flows", "deployments"):
            shutil.copytree(ROOT / name, directory / name)
        self.port = free_port()
        self.api = f"http://{host}:{self.port}/api"
        self.env = {
            **os.environ,
            "PREFECT_HOME": str(directory / "home"),
            "PREFECT_API_URL": self.api,
            "PREFECT_FT_RUNTIME_DIR": str(runtime),
            "XDG_STATE_HOME": str(runtime / "state"),
            "PWD": str(directory),
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO",  # the command line of other tests quietens it
        }
        if prepared is not None:
            copied(prepared, directory / "home")
        if database is not None:
            self.env["PREFECT_API_DATABASE_CONNECTION_URL"] = database
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        """Start a `prefect` command in the background; its pid is in NAME.pid."""
        command = [sys.executable, "-m", "prefect", *arguments]
        with (self.directory / f"{name}.log").open("ab") as log:
            process = preloaded.started(
                command, cwd=self.directory, env={**self.env, **env}, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        (self.directory / f"{name}.pid").write_text(str(process.pid))
        self.processes.append(process)
        return process

    def start_server(self) -> None:
        """Start the server, and wait until it answers."""
        self.start("server", "server", "start", "--host", self.host, "--port", str(self.port))
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.api}/health", timeout=5).close()
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
            else:
                return
        raise AssertionError((self.directory / "server.log").read_text())

    def start_worker(self, pool: str = "training", **env: str) -> None:
        """Start a worker; flow processes that it starts inherit `env`."""
        self.start("worker", "worker", "start", "--pool", pool, **env)

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """End what was started; flow processes of a worker are its group's."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def prefect(self, *arguments: str, timeout_s: float = DEADLINE_S) -> str:
        """Run a `prefect` command to its end."""
        return self.command("prefect", *arguments, timeout_s=timeout_s)

    def command(self, module: str, *arguments: str, timeout_s: float = DEADLINE_S, returns: int = 0) -> str:
        """Run a Python module's command to its end, which is to be `returns`."""
        process = preloaded.completed(
            [sys.executable, "-m", module, *arguments],
            cwd=self.directory, env=self.env, capture_output=True, text=True, timeout=timeout_s,
        )  # fmt: skip
        assert process.returncode == returns, process.stdout + process.stderr
        return process.stdout

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Ask the API."""
        request = urllib.request.Request(
            self.api + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        for _ in range(20):
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                    raise
                time.sleep(0.2)  # its database is locked just now
        raise AssertionError(f"{path}: the server's database stays locked")

    def begin(self, job: Path, name: str = "default") -> str:
        """Have the deployment of that name run a job; return the flow run's id."""
        (deployment,) = self.post("/deployments/filter", {"deployments": {"name": {"any_": [name]}}})
        run = self.post(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": {"job": str(job)}})
        return str(run["id"])

    def flow_run(self, flow_run_id: str) -> dict[str, Any]:
        (run,) = self.post("/flow_runs/filter", {"flow_runs": {"id": {"any_": [flow_run_id]}}})
        return dict(run)

    def times_begun(self, flow_run_id: str) -> int:
        """Return how often a process has begun to run a flow run.

        (Its `run_count` counts, besides, each name that its running is given.)
        """
        types = [state["type"] for state in self.states(flow_run_id)]
        return sum(after == "RUNNING" != before for before, after in pairwise(types))

    def states(self, flow_run_id: str) -> list[dict[str, Any]]:
        """Return the states of a flow run, the oldest first."""
        address = f"{self.api}/flow_run_states/?flow_run_id={flow_run_id}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            return sorted(json.load(answer), key=lambda state: str(state["timestamp"]))

    def wait_for(self, flow_run_id: str, *states: str) -> dict[str, Any]:
        """Wait until a flow run is in one of these states."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            try:
                run = self.flow_run(flow_run_id)
            except OSError:
                run = {"state_name": "no server"}
            if run["state_name"] in states:
                return run
            time.sleep(0.2)
        said = "".join((self.directory / f"{name}.log").read_text()[-3000:] for name in ("worker", "server"))
        raise AssertionError(f"{run['state_name']}, not one of {states}: {said}")

    def wait_for_task_runs(self, flow_run_id: str, expected: list[str]) -> None:
        """Wait until the flow run's task runs have these states' names: the server learns of them by events."""
        deadline = time.monotonic() + DEADLINE_S
        states: list[str] = []
        while time.monotonic() < deadline:
            tasks = self.post("/task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run_id]}}})
            states = sorted(task["state_name"] for task in tasks)
            if states == expected:
                return
            time.sleep(0.2)
        raise AssertionError(f"{states}, not {expected}")

    def close(self) -> None:
        for process in reversed(self.processes):
            self.stop(process)


def arm(site: Site) -> None:
    """Have the site's flow die where DEATH says; the marks are in the checkout."""
    text = ARMED_FLOW.format(support=str(Path(__file__).parent))
    (site.directory / "flows" / "train.py").write_text(text)
