"""`prefect deployment run train-flow/default` against a server and a process worker of the test's own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, zipfile
if os.environ["RANK"] == "0":
    with zipfile.ZipFile("ck/.tmp", "w") as file:
        file.writestr("weights", "x")
    os.replace("ck/.tmp", "ck/step-5.npz")
if os.environ["PREFECT_FT_RESTART_COUNT"] == "0":
    os.abort()
"""


class Site:
    """A checkout of its own with a server and a worker; commands run as a user would type them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.api = f"http://127.0.0.1:{self.port}/api"
        self.env = {
            **os.environ,
            "PREFECT_HOME": str(directory / "home"),
            "PREFECT_API_URL": self.api,
            "PREFECT_FT_RUNTIME_DIR": os.environ["PREFECT_FT_RUNTIME_DIR"],
            "PWD": str(directory),
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: str) -> None:
        """Start a `prefect` command in the background."""
        command = [sys.executable, "-m", "prefect", *arguments]
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self.directory, env=self.env, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(process)

    def prefect(self, *arguments: str, timeout: float = 120) -> str:
        """Run a `prefect` command to its end."""
        process = subprocess.run(
            [sys.executable, "-m", "prefect", *arguments],
            cwd=self.directory, env=self.env, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    def post(self, path: str, body: dict[str, object]) -> list[dict[str, object]]:
        """Ask the API."""
        request = urllib.request.Request(
            self.api + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return list(json.load(answer))

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.api}/health", timeout=5).close()
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
            else:
                return
        pytest.fail((self.directory / "server.log").read_text())

    def close(self) -> None:
        for process in reversed(self.processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """The parts of the checkout that a deployment needs, with a small job in the place of the quickstart's."""
    (tmp_path / "ck").mkdir()
    shutil.copytree(ROOT / "flows", tmp_path / "flows")
    shutil.copytree(ROOT / "deployments", tmp_path / "deployments")
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "flows" / "quickstart.yaml").write_text(
        "name: small\nmodel_dir: ../model\ncwd: ..\nautorestart: {max_num_restarts: 3}\n"
        "phases: [{name: train, command: [python, script.py], checkpoints: {path: ../ck}}]\n"
    )
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.close()


@pytest.mark.timeout(300)
def test_a_deployed_run_survives_a_crash_and_shows_it(site: Site) -> None:
    site.start("server", "server", "start", "--port", str(site.port))
    site.wait_until_healthy()
    site.prefect("work-pool", "create", "training", "--type", "process")
    site.prefect("--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
    site.start("worker", "worker", "start", "--pool", "training")
    site.prefect("deployment", "run", "train-flow/default", "--watch", timeout=200)

    runs = site.post("/flow_runs/filter", {})
    assert [run["state_name"] for run in runs] == ["Completed"], runs
    tasks = site.post("/task_runs/filter", {})
    assert [(task["name"], task["run_count"], task["state_name"]) for task in tasks] == [
        ("train", 2, "Completed")
    ]
    warnings = [line["message"] for line in site.post("/logs/filter", {}) if line["level"] == 30]
    assert any("rule=transient action=restart_in_place" in str(message) for message in warnings), warnings
    (artifact, *_) = site.post("/artifacts/latest/filter", {})
    assert artifact["key"] == "restart-ledger"
    rows = json.loads(str(artifact["data"]))
    assert [(row["rule"], row["action"]) for row in rows] == [
        ("transient", "restart_in_place"),
        ("completed", "complete"),
    ]
