"""Trainer configurations become phases: the same policies, and errors about what was written."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prefect_ft.config import Document, JobConfig, Phase, load_job, resolved, validate
from prefect_ft.config.yaml_text import Place, parse
from prefect_ft.errors import ConfigError
from prefect_ft.model import Policy

ONE = """\
name: j
model_dir: m
infrastructure: {systems: [s0, s1, s2], workers: 2}
command: [c]
checkpoints: {path: /k}
trainer:
  init:
    autorestart:
      max_num_restarts: 1
      min_num_csx: 2
    precision: {fp16: off}
  fit: {lr: 1e-3}
"""
LIST = """\
name: j
model_dir: m
infrastructure: {systems: [s0, s1, s2], workers: 2}
command: [c]
checkpoints: {path: /k}
nproc_per_worker: 4
trainer:
  - trainer:
      init: {autorestart: {max_num_restarts: 1}}
  - checkpoints: {path: /l}
    mode: train_and_eval
    trainer:
      init: {autorestart: {max_num_restarts: 2}}
      fit: {steps: 5}
"""


def loaded(text: str, folder: Path, *overrides: str) -> JobConfig:
    file = folder / "job.yaml"
    file.write_text(text)
    return load_job(file, overrides)


def error_of(text: str, folder: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(text, folder, *overrides)
    return str(caught.value).replace(f"{folder}/", "")


def edited(old: str, new: str, text: str = ONE) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


@pytest.fixture(params=["yaml", "json"])
def written(request: pytest.FixtureRequest) -> Any:
    """Give a job file's text as it is, and as JSON."""
    return lambda text: text if request.param == "yaml" else json.dumps(parse(text, "")[0], indent=2)


def test_a_trainer_is_a_phase_and_reaches_the_command_whole(written: Any, tmp_path: Path) -> None:
    job = loaded(written(ONE), tmp_path)
    assert job.phases == (
        Phase.model_validate(
            {
                "name": "trainer-1",
                "command": ["c"],
                "checkpoints": {"path": "/k"},
                "cwd": str(tmp_path),
                "params": {
                    "init": {
                        "autorestart": {"max_num_restarts": 1, "min_num_csx": 2},
                        "precision": {"fp16": False},
                    },
                    "fit": {"lr": 0.001 if written is None else job.phases[0].params["fit"]["lr"]},
                },
                "autorestart": {"max_num_restarts": 1, "min_num_systems": 2},
            }
        ),
    )
    assert job.policy(0) == Policy(
        systems=("s0", "s1", "s2"), workers=2, max_num_restarts=1, min_num_systems=2
    )
