"""Jobs small enough to fail and finish in a fraction of a second."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from prefect_ft.config import JobConfig

SCRIPT = """
import json, os, sys, time, zipfile
rank, restarts = int(os.environ["RANK"]), int(os.environ["PREFECT_FT_RESTART_COUNT"])
resume = os.environ["PREFECT_FT_RESUME_FROM"]
with open(f"seen-{os.environ['PREFECT_FT_PHASE']}.jsonl", "a") as seen:
    seen.write(json.dumps({**os.environ, "PID": os.getpid()}) + "\\n")

# No rank fails before all have told what they saw.
mark = "up-{PREFECT_FT_PHASE}-{PREFECT_FT_ATTEMPT}-".format(**os.environ)
open(mark + str(rank), "x").close()
while not all(os.path.exists(f"{mark}{other}") for other in range(int(os.environ["WORLD_SIZE"]))):
    time.sleep(0.001)

def save(step):
    if rank == 0:
        with zipfile.ZipFile(f"ck/.tmp-{step}", "w") as file:
            file.writestr("weights", "x" * 100)
        os.replace(f"ck/.tmp-{step}", f"ck/step-{step}.npz")

def die(signal=9):
    os.kill(os.getpid(), signal)

def wait():
    time.sleep(60)
"""


@pytest.fixture
def job(tmp_path: Path, prefect_server: None) -> Callable[..., JobConfig]:
    """Return a job whose ranks run SCRIPT and then `code`, by default as two ranks of one worker."""

    def make(code: str = "", *, phase: dict[str, Any] | None = None, **fields: Any) -> JobConfig:
        (tmp_path / "ck").mkdir(exist_ok=True)
        first = {
            "name": "train",
            "command": [sys.executable, "-S", "-c", SCRIPT + code],
            "nproc_per_worker": 2,
            "checkpoints": {"path": "ck"},
            **(phase or {}),
        }
        document = {
            "name": "test",
            "model_dir": "model",
            "autorestart": {"max_num_restarts": 3},
            "stop_grace_s": 0,
            "phases": [first],
            **fields,
        }
        return JobConfig.model_validate(document).at(tmp_path)

    return make


@pytest.fixture
def seen(tmp_path: Path) -> Callable[..., list[dict[str, str]]]:
    """Return the environments of all ranks that a phase started, in the order of their attempts."""

    def read(phase: str = "train") -> list[dict[str, str]]:
        lines = (tmp_path / f"seen-{phase}.jsonl").read_text().splitlines()
        return sorted(
            map(json.loads, lines), key=lambda env: (int(env["PREFECT_FT_ATTEMPT"]), int(env["RANK"]))
        )

    return read


@pytest.fixture(autouse=True)
def nothing_left(runtime_dir: Path) -> Any:
    """After each test no process that it started lives."""
    yield
    assert [process.info for process in _processes_of(runtime_dir)] == []


def _processes_of(runtime_dir: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "environ"]):
        words = process.info["cmdline"] or []
        env = process.info["environ"] or {}
        marks = (*words, env.get("PREFECT_FT_HEARTBEAT", ""))
        if any(str(runtime_dir) in word for word in marks):
            found.append(process)
    return found
