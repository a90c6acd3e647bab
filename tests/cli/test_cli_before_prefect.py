"""`run` and `resume` while Prefect is being loaded, does not answer, or is not there: nothing waits for it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agents import processes_of

JOB = """
name: test
model_dir: model
autorestart: {{max_num_restarts: 3}}
stop_grace_s: 0
phases:
  - name: train
    command: [{python}, -S, -c, {code}]
    checkpoints: {{path: ck}}
"""

RESTARTED = """
import os
if os.environ["PREFECT_FT_RESTART_COUNT"] == "0": raise ConnectionError("reset")
"""

STAYS = """
import signal
open("up", "w").close()
signal.pause()
"""

RESTARTED_THEN_STAYS = RESTARTED + STAYS

LIMIT_S = 120.0

WAITS = "waiting until Prefect shows the run"
NOT_SHOWN = "the run is not shown in Prefect; its journal has everything"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(params=["silent", pytest.param("refusing", marks=pytest.mark.long)])
def api(request: pytest.FixtureRequest) -> Iterator[str]:
    """An API that takes connections and never answers, or takes none."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        port = listener.getsockname()[1]
        if request.param == "refusing":
            listener.close()
        yield f"http://127.0.0.1:{port}/api"


@pytest.fixture
def start(tmp_path: Path, runtime_dir: Path, api: str) -> Iterator[Start]:
    """Start a command of ours on a job whose ranks run `code`."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str, code: str | None = None) -> subprocess.Popen[str]:
        if code is not None:
            job = JOB.format(python=sys.executable, code=json.dumps(code))
            (tmp_path / "job.yaml").write_text(job)
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect_ft.cli", *words],
            cwd=tmp_path, env={**os.environ, "PREFECT_API_URL": api}, stderr=subprocess.PIPE, text=True,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    for pid in processes_of(runtime_dir):
        os.kill(pid, signal.SIGKILL)


def await_file(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def lines_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """Read what a command says, up to a line with this text."""
    assert process.stderr is not None
    lines: list[str] = []
    while not lines or text not in lines[-1]:
        line = process.stderr.readline()
        assert line, lines
        lines.append(line)
    return lines


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return exit code and what else the command says."""
    _, said = process.communicate(timeout=LIMIT_S)
    return process.returncode, said


def status_of(directory: Path) -> str:
    (summary,) = directory.glob("model/*_restartable/summary.json")
    return str(json.loads(summary.read_text())["status"])


@pytest.mark.parametrize("api", ["silent", "refusing"], indirect=True)
def test_a_run_is_restarted_and_completes(start: Start, tmp_path: Path) -> None:
    process = start("run", "job.yaml", code=RESTARTED)
    said = lines_until(process, WAITS)
    process.send_signal(signal.SIGINT)  # waits no longer
    code, rest = end_of(process)
    assert code == 0, rest
    assert status_of(tmp_path) == "completed"
    happened = [re.sub(r"^\S+ +", "", line).split(":")[1].split()[0] for line in said if " train: " in line]
    assert happened == ["phase", "attempt", "attempt", "transient", "attempt", "completed"]
    assert NOT_SHOWN in rest
    assert "Traceback" not in rest


def test_ctrl_c_cancels(start: Start, tmp_path: Path, runtime_dir: Path) -> None:
    process = start("run", "job.yaml", code=RESTARTED_THEN_STAYS)
    await_file(tmp_path / "up", process)
    process.send_signal(signal.SIGINT)
    code, said = end_of(process)
    assert (code, status_of(tmp_path)) == (3, "cancelled"), said
    assert NOT_SHOWN in said
    assert "Traceback" not in said
    assert processes_of(runtime_dir) == {}


@pytest.mark.long
def test_cancel_cancels_and_another_run_is_refused(start: Start, tmp_path: Path) -> None:
    process = start("run", "job.yaml", code=STAYS)
    await_file(tmp_path / "up", process)
    code, said = end_of(start("run", "job.yaml"))
    assert code != 0
    assert "has a run" in said or "held" in said, said
    assert end_of(start("cancel", "model"))[0] == 0
    code, said = end_of(process)
    assert (code, status_of(tmp_path)) == (3, "cancelled"), said


FAILS_WHEN_TOLD = """
import os
open("first", "w").close()
while not os.path.exists("go"): pass
"""


def test_a_comeback_answers_the_next_failure(start: Start, tmp_path: Path) -> None:
    code = FAILS_WHEN_TOLD + RESTARTED
    process = start("run", "job.yaml", code=code)
    await_file(tmp_path / "first", process)
    lines_until(process, "attempt 1:")
    process.kill()
    process.communicate()
    back = start("resume", "model")
    lines_until(back, "back after")
    (tmp_path / "go").touch()
    lines_until(back, WAITS)
    back.send_signal(signal.SIGINT)
    assert end_of(back)[0] == 0
    assert status_of(tmp_path) == "completed"


COUNTED = """
import sys
import threading
from prefect_ft import cli
from prefect_ft.observe import AttemptStarted, observed_by

class LoadedBeside:
    names = set()

    def find_spec(self, name, path=None, target=None):
        if threading.current_thread().name == "prefect-ft-view":
            self.names.add(name)

sys.meta_path.insert(0, LoadedBeside())

def note(fact):
    if isinstance(fact, AttemptStarted):
        waited_for = set(sys.modules) - LoadedBeside.names
        print("modules", len(waited_for), sorted({name.split(".")[0] for name in waited_for}))

with observed_by(note):
    cli.main(["run", "job.yaml"])
"""
"""What the thread that loads Prefect imports counts for nothing: on a busy machine it has begun by then."""

NOT_NEEDED = {"prefect", "httpx", "sqlalchemy", "fastapi", "docker", "jinja2", "anyio", "uvicorn", "griffe"}
MOST_MODULES = 720
"""Of which pydantic, rich and asyncio make up the most; with Prefect there are more than 2,000."""


@pytest.mark.parametrize("api", ["refusing"], indirect=True)
def test_the_first_rank_waits_for_no_module_that_it_does_not_need(
    api: str, tmp_path: Path, runtime_dir: Path
) -> None:
    (tmp_path / "job.yaml").write_text(JOB.format(python=sys.executable, code=json.dumps("pass")))
    process = subprocess.run(
        [sys.executable, "-c", COUNTED], cwd=tmp_path, env={**os.environ, "PREFECT_API_URL": api},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    found = re.search(r"^modules (\d+) (.*)$", process.stdout, re.MULTILINE)
    assert found is not None, process.stdout + process.stderr
    assert int(found[1]) < MOST_MODULES
    assert not NOT_NEEDED & set(json.loads(found[2].replace("'", '"')))
