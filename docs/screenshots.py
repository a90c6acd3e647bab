"""Takes the pictures of Prefect's UI that the documentation shows: `python docs/screenshots.py [docs/images]`.

Starts a server on a free port with a database of its own, runs the quickstart on it, deploys train-flow, and has
Chromium open what the pages tell of. Each page must hold the texts that make it worth a picture.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
START_S = 180.0
PATIENCE_MS = 30_000
"""Of the browser's own clock: how long a page may load what it shows."""

CHROMIUM = (
    "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    f"--virtual-time-budget={PATIENCE_MS}", "--run-all-compositor-stages-before-draw",
)  # fmt: skip


class Site:
    """A server, and what a user types beside it."""

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.api = f"{self.address}/api"
        self.env = {
            **os.environ,
            "PREFECT_HOME": str(directory / "home"),
            "PREFECT_API_URL": self.api,
            "PREFECT_UI_API_URL": self.api,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PWD": str(ROOT),
        }

    def run(self, *words: str) -> None:
        """Run a Python module's command."""
        subprocess.run([sys.executable, "-m", *words], cwd=ROOT, env=self.env, check=True)

    def ask(self, path: str) -> list[dict[str, Any]]:
        """Ask the API for all there is of a kind."""
        request = urllib.request.Request(
            f"{self.api}{path}/filter", b"{}", {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return list(json.load(answer))

    @contextmanager
    def served(self) -> Iterator[None]:
        """Have the server answer while entered."""
        port = self.address.rpartition(":")[2]
        command = [sys.executable, "-m", "prefect", "server", "start", "--port", port]
        server = subprocess.Popen(command, cwd=ROOT, env=self.env, start_new_session=True)
        try:
            self._wait_until_it_answers()
            yield
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                urllib.request.urlopen(f"{self.api}/health", timeout=5).close()
            except (urllib.error.URLError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return


def take(url: str, path: Path, height: int, texts: Sequence[str]) -> None:
    """Have Chromium open an address, look for the texts in what it shows, and take a picture of it."""
    with tempfile.TemporaryDirectory() as profile:
        command = [*CHROMIUM, f"--user-data-dir={profile}", f"--window-size=1280,{height}"]
        dom = subprocess.run([*command, "--dump-dom", url], capture_output=True, text=True, check=True).stdout
        missing = [text for text in texts if text not in dom]
        if missing:
            raise SystemExit(f"{url} does not show {missing}")
        subprocess.run([*command, f"--screenshot={path}", url], capture_output=True, check=True)
    print(path)


def main(target: Path) -> None:
    """Make all pictures."""
    with tempfile.TemporaryDirectory(prefix="prefect-ft-shots-") as name:
        directory = Path(name)
        site = Site(directory)
        with site.served():
            shutil.rmtree(ROOT / "runs" / "quickstart", ignore_errors=True)  # each fault comes once
            site.run(
                "prefect_ft.cli", "run", "flows/quickstart.yaml", "--model-dir", str(directory / "model")
            )
            site.run("prefect", "work-pool", "create", "training", "--type", "process")
            site.run(
                "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml"
            )
            (flow_run,) = site.ask("/flow_runs")
            (deployment,) = [each for each in site.ask("/deployments") if each["name"] == "default"]
            artifacts = {
                each["key"]: f"{site.address}/artifacts/artifact/{each['id']}"
                for each in site.ask("/artifacts")
            }
            take(
                f"{site.address}/runs/flow-run/{flow_run['id']}", target / "flow-run.png", 900,
                ["Completed", "pretrain", "finetune", "rule=confirm-once"],
            )  # fmt: skip
            take(
                artifacts["fault-recovery"], target / "fault-recovery.png", 1000,
                ["fault-recovery", "What happened", "data:image/svg+xml"],
            )  # fmt: skip
            take(
                artifacts["restart-ledger"], target / "restart-ledger.png", 700,
                ["restart-ledger", "restart_in_place", "budgets after"],
            )  # fmt: skip
            take(
                f"{site.address}/deployments/deployment/{deployment['id']}/run", target / "deployment-form.png", 1000,
                ["job", "unfinished"],
            )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
