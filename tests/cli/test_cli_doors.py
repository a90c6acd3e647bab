"""Files of other products as they are: `prefect-ft run`, `validate` and `replay` with nothing added but a command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import preloaded
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

    return preloaded.completed(
        [sys.executable, "-m", "prefect_ft.cli", "run", *arguments],
        env={**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
    )


def printed(directory: Path) -> list[tuple[str, str]]:
    """Return what the ranks of the one phase said, each line with its attempt."""
    (log,) = directory.glob("*_restartable/run.log")
    lines = [line.split(" ", 3) for line in log.read_text().splitlines()]
    return [(words[0].strip("["), words[3]) for words in lines]


# -- a trainer configuration ---------------------------------------------------------------------------


@pytest.mark.long  # 20 s
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


LIST = """\
trainer:
  - trainer:
      init: &first
        model_dir: ../runs/trainer
        loop: {max_steps: 40, eval_frequency: 20}
        checkpoint: {steps: 20}
        autorestart: {max_num_restarts: RESTARTS}
      fit: &data
        train_dataloader: {data_processor: None}
        val_dataloader: {data_processor: None}
  - trainer:
      init: {<<: *first, loop: {max_steps: 80, eval_frequency: 20}}
      fit: *data
"""


def test_the_trainers_of_a_list_run_one_after_the_other(started: Path) -> None:
    """Cerebras, "Log Files and Monitoring": each phase has a separate timestamped restartable directory."""
    (started / "flows/list.yaml").write_text(LIST.replace("RESTARTS", "3"))
    done = run(started, "flows/list.yaml", "--command", "python trainer.py fit", "--json")
    assert done.returncode == 0, done.stderr
    phases = json.loads(done.stdout)["phases"]
    assert [(phase["phase"], phase["status"], phase["final_step"]) for phase in phases] == [
        ("trainer-1", "completed", 40),
        ("trainer-2", "completed", 80),
    ]
    logs = [path.read_text() for path in sorted((started / "runs/trainer").glob("*_restartable*/run.log"))]
    assert ["train from step 0" in log for log in logs] == [True, False]
    assert ["train from step 40" in log for log in logs] == [False, True]


def test_a_trainer_is_not_started_when_the_one_before_it_fails(started: Path) -> None:
    """Cerebras, "Restart Behavior": subsequent configs only run if the previous one succeeds."""
    (started / "flows/list.yaml").write_text(LIST.replace("RESTARTS", "0"))
    command = "python trainer.py fit --fail-validation 20"
    done = run(started, "flows/list.yaml", "--command", command, "--json")
    assert done.returncode == 1, done.stderr
    assert len([*(started / "runs/trainer").glob("*_restartable*")]) == 1


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


# -- requests of ModelArts' ----------------------------------------------------------------------------

EXAMPLES = {
    "unconditional": """\
    {
        "kind": "job",
        "metadata": {
            "annotations": {
                "fault-tolerance/job-retry-num": "8",
                "fault-tolerance/job-unconditional-retry": "true"
            }
        }
    }""",
    "upon-suspension": """\
    {
        "kind": "job",
        "metadata": {
            "annotations": {
                "fault-tolerance/job-retry-num": "3",
                "fault-tolerance/hang-retry": "true"
            }
        }
    }""",
    "all": """\
    {
        "kind": "job",
        "metadata": {
            "annotations": {
                "fault-tolerance/job-retry-num": "8",
                "fault-tolerance/job-unconditional-retry": "true",
                "fault-tolerance/hang-retry": "true",
               "fault-tolerance/pod-retry-num": "3"
            }
        }
    }""",
}
"""The examples of the documents, word for word."""

TRAINS = """
import json, os, sys, time
folder = next((word[12:] for word in sys.argv if word.startswith("--train_url=")), "runs/request/checkpoints")
os.makedirs(folder, exist_ok=True)
resume = os.environ["PREFECT_FT_RESUME_FROM"]
print(" ".join(["from", os.path.basename(resume) or "nothing", *sys.argv[1:3]]), flush=True)
if not resume and os.environ["RANK"] != "0":
    time.sleep(60)
if not resume:
    with open(f"{folder}/.tmp", "w") as file:
        json.dump({"files": []}, file)
    os.replace(f"{folder}/.tmp", f"{folder}/step-5.json")
    print("ConnectionResetError: connection reset by peer", file=sys.stderr, flush=True)
    sys.exit(1)
"""
"""A trainer that saves once and then loses a connection, and that does nothing more once it resumes."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_the_documents_run_as_they_are(
    name: str, prefect_server: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "request.json").write_text(EXAMPLES[name])
    (tmp_path / "train.py").write_text(TRAINS)
    words = [str(tmp_path / "request.json"), "--command", "python train.py"]
    assert main(["validate", *words]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["faults"]["logs"] is True
    done = run(tmp_path, *words, "--json")
    assert done.returncode == 0, done.stderr
    (phase,) = json.loads(done.stdout)["phases"]
    assert (phase["status"], phase["restarts"]) == ("completed", {"rebuild": 1})
    assert [line for _, line in printed(tmp_path / "runs/request") if line.startswith("from")] == [
        "from nothing",
        "from step-5.json",
    ]


def test_a_whole_request_runs_as_it_is(prefect_server: None, tmp_path: Path) -> None:
    request = {
        "kind": "job",
        "metadata": {"name": "whole", "annotations": {"fault-tolerance/job-retry-num": "3"}},
        "algorithm": {
            "code_dir": "/bucket/code/",
            "boot_file": "/bucket/code/train.py",
            "parameters": [{"name": "lr", "value": "0.1"}],
            "outputs": [{"name": "train_url", "remote": {"obs": {"obs_url": "/bucket/out/"}}}],
            "environments": {"SEED": "7"},
        },
        "spec": {"resource": {"flavor_id": "modelarts.vm.cpu.8u", "node_count": 2}},
    }
    (tmp_path / "request.json").write_text(json.dumps(request))
    (tmp_path / "train.py").write_text(TRAINS)
    done = run(tmp_path, "request.json", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["phases"][0]["restarts"] == {"rebuild": 1}
    output = tmp_path / "runs/whole/outputs/train_url"
    assert [path.name for path in output.iterdir()] == ["step-5.json"]
    said = [line for _, line in printed(tmp_path / "runs/whole") if line.startswith("from")]
    words = f"--lr=0.1 --train_url={output}"
    assert set(said) == {f"from nothing {words}", f"from step-5.json {words}"}
    assert "warning: request.json: algorithm.code_dir: is not fetched from OBS" in done.stderr
