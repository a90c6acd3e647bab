"""A run that one version began and another one takes up, watched and unwatched, with agents that live on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import processes_of
from releases import RECORDED, Version, lines_of, this

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("api")]

JOB = """name: across
model_dir: model
orphan_timeout_s: 120
infrastructure: {type: process, systems: [s0, s1], workers: 2, secret_env: {TOKEN: no-secret}}
autorestart: {max_num_restarts: 3}
phases:
  - name: pretrain
    command: [python, -S, train.py, held]
    checkpoints: {path: checkpoints, settle_s: 0.1}
    target_step: 30
"""

Orphan = Callable[[Version], Path]


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[Orphan]:
    """Have a version begin a run, and kill it in step 15; its agents and ranks live. Give the model directory."""
    started: list[subprocess.Popen[str]] = []

    def make(version: Version) -> Path:
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "hold").touch()
        (tmp_path / "job.yaml").write_text(JOB)
        shutil.copy(RECORDED / "train.py", tmp_path)
        run = version.command("run", "job.yaml", cwd=tmp_path)
        started.append(run)
        while not (
            is_held(tmp_path) and any(line["type"] == "checkpoint" for line in lines_of(tmp_path / "model"))
        ):
            assert run.poll() is None, run.communicate()[0]
            signal.sigtimedwait([], 0.02)
        run.kill()
        run.wait()
        return tmp_path / "model"

    yield make
    for each in started:
        each.kill()
        each.communicate()
    for pid in processes_of(Path(os.environ["PREFECT_FT_RUNTIME_DIR"])):
        os.kill(pid, signal.SIGKILL)


def is_held(place: Path) -> bool:
    return (place / "held-0").exists() and (place / "held-1").exists()


def of_type(model: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in lines_of(model) if line["type"] == kind]


def pair(way: str, earlier: Version) -> tuple[Version, Version]:
    return (earlier, this()) if way == "upgrade" else (this(), earlier)


def assert_nothing_left(model: Path) -> None:
    assert processes_of(Path(os.environ["PREFECT_FT_RUNTIME_DIR"])) == {}
    assert processes_of(model.parent) == {}


ways = pytest.mark.parametrize("way", ["upgrade", "rollback"])


@pytest.mark.parametrize("way", ["upgrade", pytest.param("rollback", marks=pytest.mark.long)])
def test_a_running_gang_is_taken_over_and_its_attempt_goes_on(
    orphan: Orphan, earlier: Version, way: str
) -> None:
    first, second = pair(way, earlier)
    model = orphan(first)
    code, said = second.done("status", str(model), "--json", cwd=model.parent)
    assert (code, json.loads(said)[0]["status"]) == (0, "running"), said
    resumed = second.command("resume", str(model), cwd=model.parent)
    while not of_type(model, "comeback"):
        assert resumed.poll() is None, resumed.communicate()[0]
        signal.sigtimedwait([], 0.02)
    (model.parent / "hold").unlink()
    said, _ = resumed.communicate(timeout=90)
    assert resumed.returncode == 0, said
    (comeback,) = of_type(model, "comeback")
    assert (comeback["adopted"], comeback["goes_on"], comeback["attempt"]) == ([0, 1], True, 1)
    assert [line["attempt"] for line in of_type(model, "attempt")] == [1]
    assert json.loads((model.parent / "checkpoints" / "step-30.json").read_text()) == {"step": 30, "sum": 465}
    journal = str(next(model.glob("*/journal.jsonl")))
    for version in (first, second):
        code, said = version.done("replay", "job.yaml", journal, "--diff", cwd=model.parent)
        assert (code, said.splitlines()[-1]) == (0, "0 of 1 decision differ"), said
    assert_nothing_left(model)


@pytest.mark.parametrize("way", ["upgrade", pytest.param("rollback", marks=pytest.mark.long)])
def test_an_orphan_of_another_version_is_cancelled(orphan: Orphan, earlier: Version, way: str) -> None:
    first, second = pair(way, earlier)
    model = orphan(first)
    code, said = second.done("cancel", str(model), cwd=model.parent)
    assert code == 0, said
    for version in (first, second):
        code, said = version.done("status", str(model), "--json", cwd=model.parent)
        assert (code, json.loads(said)[0]["status"]) == (0, "cancelled"), said
    assert_nothing_left(model)


@pytest.mark.long
@ways
def test_a_fresh_run_ends_an_orphan_of_another_version(orphan: Orphan, earlier: Version, way: str) -> None:
    first, second = pair(way, earlier)
    model = orphan(first)
    (model.parent / "hold").unlink()
    code, said = second.done("run", "job.yaml", "--fresh", cwd=model.parent)
    assert code == 0, said
    assert [line["status"] for line in of_type(model, "end")] == ["cancelled", "completed"], said
    assert_nothing_left(model)
