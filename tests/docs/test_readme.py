"""What README.md has a user type, word by word, in a clone with a `.venv`: only ports differ."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import ROOT, blocks, section
from sites import DEADLINE_S, Site

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

README = "../README.md"


class Clone(Site):
    """A clone with terminals: what is typed in one finds no environment but the user's own."""

    def __init__(self, directory: Path, runtime: Path) -> None:
        super().__init__(directory, runtime)
        (directory / ".venv").symlink_to(sys.prefix)
        ours = (str(Path(sys.prefix, "bin")), str(Path(sys.executable).parent))
        path = [entry for entry in os.environ["PATH"].split(os.pathsep) if entry not in ours]
        self.user = {**self.env, "PATH": os.pathsep.join(path), "PREFECT_SERVER_API_PORT": str(self.port)}
        for name in ("PREFECT_API_URL", "VIRTUAL_ENV"):
            self.user.pop(name, None)

    def type(self, text: str) -> subprocess.Popen[bytes]:
        """Type lines into a new terminal; what they print is in `terminal.log`."""
        with (self.directory / "terminal.log").open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-ec", text.replace("4200", str(self.port))],
                cwd=self.directory, env=self.user, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def printed(self) -> str:
        return (self.directory / "terminal.log").read_text()

    def await_answer(self, path: str, body: dict[str, object], typed: subprocess.Popen[bytes]) -> None:
        """Wait until the API has an answer, which something that was typed brings about."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            assert typed.poll() is None, self.printed()
            try:
                if self.post(path, body):
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise AssertionError(self.printed())


@pytest.fixture
def clone(tmp_path: Path, runtime_dir: Path) -> Iterator[Clone]:
    clone = Clone(tmp_path, runtime_dir)
    yield clone
    clone.close()


def commands(heading: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", section(README, heading), re.MULTILINE | re.DOTALL)
    return [text for language, text in fenced if not language]


def test_a_training_of_ones_own(clone: Clone) -> None:
    (job,) = blocks(ROOT / "README.md", "yaml")
    (clone.directory / "job.yaml").write_text(job)
    (typed,) = commands("Your own training")
    assert clone.type(typed).wait(300) == 0, clone.printed()
    assert "The run my-job completed" in clone.printed()


def test_a_run_on_a_prefect_server(clone: Clone) -> None:
    server, worker, run = commands("On a Prefect server")
    typed = clone.type(server)
    clone.await_answer("/block_types/filter", {}, typed)
    typed = clone.type(worker)
    clone.await_answer("/work_pools/training/workers/filter", {}, typed)
    assert clone.type(run).wait(300) == 0, clone.printed()
    (flow_run,) = clone.post("/flow_runs/filter", {})
    assert flow_run["state_name"] == "Completed"
    assert len(clone.post("/automations/filter", {})) >= 2
