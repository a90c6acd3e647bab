"""Where Slurm's commands are missing, as in containers of pyxis, what is missing is said before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prefect_ft.backends.slurm.commands import NEEDED, check_commands
from prefect_ft.errors import ConfigError

JOB = """
name: contained
model_dir: model
infrastructure: {type: slurm, nodes: 2}
phases: [{name: train, mode: eval, command: [python, train.py]}]
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is the whole of PATH, with a program of each name that is needed."""
    place = tmp_path / "programs"
    place.mkdir()
    for name in NEEDED:
        (place / name).write_text("#!/bin/sh\nexit 1\n")
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(place))
    return place


@pytest.mark.parametrize("name", NEEDED)
def test_the_command_that_is_missing_is_named(programs: Path, name: str) -> None:
    check_commands("infrastructure.type")
    (programs / name).unlink()
    with pytest.raises(
        ConfigError, match=rf"infrastructure\.type: needs Slurm's {name}, .* not on PATH; containers"
    ):
        check_commands("infrastructure.type")


def test_a_run_in_a_container_without_them_ends_with_that(programs: Path, tmp_path: Path) -> None:
    """An allocation around it changes nothing: pyxis passes its variables on."""
    (programs / "scontrol").unlink()
    (tmp_path / "job.yaml").write_text(JOB)
    done = subprocess.run(
        [sys.executable, "-m", "prefect_ft.cli", "run", "job.yaml"],
        cwd=tmp_path, env={**os.environ, "SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: job.yaml:4: infrastructure.type: needs Slurm's scontrol")
    assert [*tmp_path.glob("model/.prefect-ft/*/run.json")] == []
