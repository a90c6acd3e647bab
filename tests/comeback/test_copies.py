"""A copy of a model directory whose run lives ends nothing of the original; one that was moved is the run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import preloaded
import pytest

from prefect_ft.errors import ConfigError
from prefect_ft.files import read_json, write_json
from prefect_ft.run import latest_run, new_run, runtime_directory
from prefect_ft.run.ownership import OWNER, check_own, own_runtime, recorded_runtime

SCRIPT = """
import os, time
from pathlib import Path
Path("pid").write_text(str(os.getpid()))
while not Path("go").exists():
    time.sleep(0.02)
"""
REDIRECTS = """
import json, os
from pathlib import Path
told = next(Path("exp1").glob(".prefect-ft/*/run.json")).resolve()
name = told.parent.name if os.environ["NAME"] == "RUN" else os.environ["NAME"]
precious = Path("precious").resolve() / name
precious.mkdir(parents=True)
(precious / "file").write_text("kept")
told.write_text(json.dumps({**json.loads(told.read_text()), "runtime": str(precious)}))
"""
SAVES = """
import os, sys
from pathlib import Path
told = os.environ["PREFECT_FT_RESUME_FROM"]
print("from", Path(told).name if told else "scratch")
Path(sys.argv[1], "step-7.json").write_text("{}")
sys.exit(not Path(sys.argv[2], "go").exists())
"""
JOB = """
name: waits
model_dir: exp1
lease_s: 1
infrastructure: {type: process, systems: [s0], workers: 1}
phases: [{name: one, command: [python, -S, train.py]}]
"""


def command_line(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return preloaded.completed(
        [sys.executable, "-m", "prefect_ft.cli", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def original(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An orchestrator whose rank waits for the file `go`, and a copy of its model directory, exp2."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.yaml").write_text(JOB)
    with (tmp_path / "log").open("wb") as log:
        process = preloaded.started(
            [sys.executable, "-m", "prefect_ft.cli", "run", "job.yaml"], cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        deadline_s = time.monotonic() + 60
        while not (tmp_path / "pid").exists():
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        subprocess.run(["cp", "-a", "exp1", "exp2"], cwd=tmp_path, check=True)
        yield process
    finally:
        (tmp_path / "go").touch()
        process.wait(timeout=60)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("cancel", "exp2"), id="cancel", marks=pytest.mark.long),
        pytest.param(("resume", "exp2"), id="resume"),
        pytest.param(("run", "job.yaml", "--model-dir", "exp2"), id="run", marks=pytest.mark.long),
        pytest.param(("run", "job.yaml", "--model-dir", "exp2", "--fresh"), id="fresh"),
    ],
)
def test_a_copy_ends_nothing_of_the_original(
    tmp_path: Path, original: subprocess.Popen[bytes], words: tuple[str, ...]
) -> None:
    refused = command_line(*words, cwd=tmp_path)
    while "is held by" in refused.stderr and original.poll() is None:  # for the lease's second
        refused = command_line(*words, cwd=tmp_path)
    assert refused.returncode == 2, (refused.stdout, refused.stderr)
    assert f"is a copy of {tmp_path / 'exp1'}" in refused.stderr
    os.kill(int((tmp_path / "pid").read_text()), 0)
    (tmp_path / "go").touch()
    assert original.wait(timeout=60) == 0, (tmp_path / "log").read_text()
    run = latest_run(tmp_path / "exp1")
    assert run is not None
    assert (run.status, recorded_runtime(run).exists()) == ("completed", False)


def test_a_run_that_was_moved_is_the_run_and_a_copy_is_not(tmp_path: Path) -> None:
    run = new_run(tmp_path / "exp1", "j", run_id="r1", runtime=str(runtime_directory("r1")))
    own_runtime(run)
    check_own(run)
    subprocess.run(["cp", "-a", tmp_path / "exp1", tmp_path / "exp2"], check=True)
    copy, first = latest_run(tmp_path / "exp2"), latest_run(tmp_path / "exp1")
    assert copy is not None
    assert first is not None
    check_own(first)
    with pytest.raises(
        ConfigError, match=rf"exp2: is a copy of {tmp_path / 'exp1'}, .*Remove .*exp2/\.prefect-ft"
    ):
        check_own(copy)
    (tmp_path / "exp1").rename(tmp_path / "moved")
    moved = latest_run(tmp_path / "moved")
    assert moved is not None
    check_own(moved)
    own_runtime(moved)
    with pytest.raises(ConfigError, match=r"is a copy of .*moved"):
        check_own(copy)
    assert read_json(recorded_runtime(moved) / OWNER)["root"] == str(
        tmp_path / "moved" / ".prefect-ft" / "r1"
    )


def test_a_run_in_another_file_system_is_resumed_only_as_moved(tmp_path: Path) -> None:
    """Its inode is another one there, as a copy's is, and no original is left to tell."""
    (tmp_path / "train.py").write_text("import sys, pathlib; sys.exit(not pathlib.Path('go').exists())")
    (tmp_path / "job.yaml").write_text(JOB)
    assert command_line("run", "job.yaml", cwd=tmp_path).returncode == 1
    subprocess.run(["cp", "-a", "exp1", "exp2"], cwd=tmp_path, check=True)
    refused = command_line("resume", "exp2", "--moved", cwd=tmp_path)
    assert (refused.returncode, "is a copy of" in refused.stderr) == (2, True), refused.stderr
    shutil.rmtree(tmp_path / "exp1")
    refused = command_line("resume", "exp2", cwd=tmp_path)
    assert (refused.returncode, "resume exp2 --moved" in refused.stderr.replace(f"{tmp_path}/", "")) == (
        2,
        True,
    )
    (tmp_path / "go").touch()
    resumed = command_line("resume", "exp2", "--moved", cwd=tmp_path)
    assert resumed.returncode == 0, (resumed.stdout, resumed.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ("resume", "exp2"),
        pytest.param(("run", "job.yaml", "--model-dir", "exp2", "--resume"), marks=pytest.mark.long),
    ],
)
def test_what_was_saved_in_a_directory_that_was_moved_is_not_begun_without(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The paths of its job are those with which it began: what lay there would be made anew, and empty."""
    train = f"[python, -S, train.py, {tmp_path}/exp1/saves, {tmp_path}]"
    saves = "checkpoints: {path: exp1/saves, settle_s: 0}"
    (tmp_path / "train.py").write_text(SAVES)
    (tmp_path / "job.yaml").write_text(JOB.replace("[python, -S, train.py]", f"{train}, {saves}"))
    assert command_line("run", "job.yaml", cwd=tmp_path).returncode == 1
    (tmp_path / "exp1").rename(tmp_path / "exp2")
    (tmp_path / "go").touch()
    refused = command_line(*words, cwd=tmp_path)
    assert (refused.returncode, f"ln -s NEW {tmp_path}/exp1`" in refused.stderr) == (2, True), refused.stderr
    assert not (tmp_path / "exp1").exists()
    (tmp_path / "exp1").symlink_to("exp2")
    resumed = command_line(*words, cwd=tmp_path)
    assert resumed.returncode == 0, (resumed.stdout, resumed.stderr)
    (log,) = [path for path in tmp_path.glob("exp2/*/run.log") if "from step-7.json" in path.read_text()]
    assert "from scratch" not in log.read_text()


def test_a_run_whose_working_directory_was_moved_says_where_it_was(tmp_path: Path) -> None:
    place = tmp_path / "project"
    place.mkdir()
    (place / "train.py").write_text("import sys, pathlib; sys.exit(not pathlib.Path('go').exists())")
    (place / "job.yaml").write_text(JOB)
    assert command_line("run", "job.yaml", cwd=place).returncode == 1
    place.rename(tmp_path / "moved")
    refused = command_line("resume", "moved/exp1", cwd=tmp_path)
    assert (refused.returncode, f"ln -s NEW {place}`" in refused.stderr) == (2, True), refused.stderr
    assert not place.exists()


@pytest.mark.parametrize("told", ["/etc", "/r1/../other", "r1", 7, None])
def test_a_path_that_does_not_belong_to_the_run_is_refused(tmp_path: Path, told: object) -> None:
    run = new_run(tmp_path, "j", run_id="r1", runtime=str(runtime_directory("r1")))
    write_json(run.root / "run.json", {**run.record(), "runtime": told})
    with pytest.raises(ConfigError, match=r"run\.json: (names|says nothing).*; put the file back"):
        recorded_runtime(run)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("other", id="of-another-name", marks=pytest.mark.long),
        pytest.param("RUN", id="of-the-same-name"),
    ],
)
def test_what_a_script_writes_into_run_json_is_not_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text(REDIRECTS)
    (tmp_path / "job.yaml").write_text(JOB + f"env: {{NAME: {name}}}\n")
    ended = command_line("run", "job.yaml", cwd=tmp_path)
    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    assert [path.read_text() for path in tmp_path.glob("precious/*/file")] == ["kept"]
    assert "the run-time directory is not removed" in ended.stdout + ended.stderr


def test_a_relative_run_time_directory_is_taken_from_here(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runtime_dir)
    monkeypatch.setenv("PREFECT_FT_RUNTIME_DIR", "rt")
    run = new_run(tmp_path / "model", "j", run_id="r1", runtime=str(runtime_directory("r1")))
    assert recorded_runtime(run) == runtime_dir / "rt" / "r1"
