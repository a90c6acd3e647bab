"""Files of other products as they are: `prefect-ft run`, `validate` and `replay` with nothing added but a command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from prefect_ft.cli import main

FLOWS = Path(__file__).parents[2] / "flows"


@pytest.fixture
def started(prefect_server: None, tmp_path: Path) -> Path:
    """Return a directory with the example's files, from which runs use the session's server."""
    (tmp_path / "flows").mkdir()
    for name in ("trainer.py", "trainer.yaml"):
        shutil.copy(FLOWS / name, tmp_path / "flows")
    return tmp_path


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    from prefect.settings import PREFECT_API_URL

    return subprocess.run(
        [sys.executable, "-m", "prefect_ft.cli", "run", *arguments],
        env={**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def printed(directory: Path) -> list[tuple[str, str]]:
    """Return what the ranks of the one phase said, each line with its attempt."""
    (log,) = directory.glob("*_restartable/run.log")
    lines = [line.split(" ", 3) for line in log.read_text().splitlines()]
    return [(words[0].strip("["), words[3]) for words in lines]


# -- a trainer configuration ---------------------------------------------------------------------------


def test_a_run_goes_on_with_the_training_loop_after_a_failed_validation(started: Path) -> None:
    """Cerebras, "Automatic Job Restart": a failure in a validation resumes from the next training loop."""
    done = run(
        started, "flows/trainer.yaml", "--command", "python trainer.py fit --fail-validation 60", "--json"
    )
    assert done.returncode == 0, done.stderr
    (phase,) = json.loads(done.stdout)["phases"]
    assert (phase["status"], phase["final_step"], phase["restarts"]) == (
        "completed",
        100,
        {"restart_in_place": 1},
    )
    model_dir = started / "runs/trainer"
    assert sorted(path.name for path in model_dir.glob("*.mdl")) == [
        "checkpoint_100.mdl",
        "checkpoint_25.mdl",
        "checkpoint_50.mdl",
        "checkpoint_75.mdl",
    ]
    said = [
        (attempt, line) for attempt, line in printed(model_dir) if line.startswith(("train from", "step"))
    ]
    assert said == [
        ("a1", "train from step 0"),
        ("a1", "step 20 validation error 0.1216"),
        ("a1", "step 40 validation error 0.0148"),
        ("a2", "train from step 50"),
        ("a2", "step 60 validation left out"),
        ("a2", "step 80 validation error 0.0002"),
        ("a2", "step 100 validation error 0.0000"),
    ]


def test_a_trainer_configuration_is_validated_with_its_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gpt.yaml").write_text("trainer: {init: {autorestart: {max_num_restarts: 200}}}\n")
    assert main(["validate", str(tmp_path / "gpt.yaml"), "--command", "python run.py train"]) == 0
    said = capsys.readouterr()
    assert yaml.safe_load(said.out)["phases"][0]["command"] == ["python", "run.py", "train"]
    file = f"warning: {tmp_path / 'gpt.yaml'}: "
    assert said.err.splitlines()[0] == (
        f"{file}trainer.init.autorestart.max_num_restarts: is 128 here, the most, got 200"
    )
    assert main(["validate", str(tmp_path / "gpt.yaml")]) == 2
    assert "command: missing" in capsys.readouterr().err


def test_a_trainer_configuration_decides_about_incidents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gpt.yaml").write_text("trainer: {init: {autorestart: {max_num_restarts: 1}}}\n")
    incident = {"kind": "exit", "exit_code": 1, "class": "network"}
    lines = [json.dumps({"t": t, **incident}) for t in (1, 2)]
    (tmp_path / "incidents.jsonl").write_text("\n".join(lines))
    words = ["replay", str(tmp_path / "gpt.yaml"), str(tmp_path / "incidents.jsonl"), "--json"]
    assert main([*words, "--command", "python run.py train"]) == 0
    decided = [json.loads(line)["action"] for line in capsys.readouterr().out.splitlines()]
    assert decided == ["restart_in_place", "fail"]
