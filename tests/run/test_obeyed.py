"""What of a run's own directory is obeyed: only what the run, and this user, have put there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from prefect_ft.cli import main
from prefect_ft.config import JobConfig, resolved
from prefect_ft.errors import ConfigError
from prefect_ft.files import read_json, write_json
from prefect_ft.orchestrate.run import job_of
from prefect_ft.run import Run, new_run, new_run_id, read_run, vacancy

SECRETS = {"infrastructure": {"secret_env": {"TOKEN": "xyz"}}}


def job(directory: Path) -> dict[str, Any]:
    told = {
        "name": "j",
        "model_dir": str(directory),
        "cwd": str(directory),
        "infrastructure": {"type": "process", "workers": 1, "systems": ["s0"]},
        "phases": [{"name": "one", "command": ["true"], "cwd": str(directory)}],
    }
    return resolved(JobConfig.model_validate(told))


def begun(directory: Path) -> Run:
    """A run that nobody holds."""
    holding = vacancy(directory).begin(new_run_id(), "j", job_config=job(directory), secrets=SECRETS)
    holding.lease.release()
    return holding.run


@pytest.mark.parametrize("name", ["job.json", "secrets.json"])
def test_what_was_changed_is_not_obeyed(tmp_path: Path, name: str) -> None:
    run = begun(tmp_path)
    assert (run.job()["name"], run.secrets()) == ("j", SECRETS)
    write_json(run.root / name, {**read_json(run.root / name), "heal": ["rm"]})
    with pytest.raises(ConfigError, match=f"{name}: was changed since the run began"):
        job_of(run)


def test_a_seal_that_is_gone_is_none(tmp_path: Path) -> None:
    run = begun(tmp_path)
    (run.root / "seals.json").unlink()
    with pytest.raises(ConfigError, match="was changed"):
        run.job()


def test_a_run_of_an_earlier_version_has_no_seals(tmp_path: Path) -> None:
    run = begun(tmp_path)
    (run.root / "seals.json").unlink()
    (run.root / "key").write_text("ab" * 16)
    earlier = read_run(run.root)
    assert earlier is not None
    assert earlier.job()["name"] == "j"


def test_a_command_that_was_written_into_the_job_is_not_executed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun(tmp_path)
    told = run.job()
    told["phases"][0]["command"] = ["touch", str(tmp_path / "planted")]
    write_json(run.root / "job.json", told)
    assert main(["resume", str(tmp_path)]) != 0
    assert "was changed since the run began" in capsys.readouterr().err
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({"phases": [{"directory": "../other", "index": 0}]}, id="a-directory-above"),
        pytest.param({"phases": [{"directory": "/etc", "index": 0}]}, id="a-directory-elsewhere"),
        pytest.param({"phases": [{"directory": 3, "index": 0}]}, id="a-number"),
        pytest.param({"systems": ["../s0"]}, id="a-system-above"),
    ],
)
def test_what_leads_out_of_the_model_directory_is_refused(tmp_path: Path, told: dict[str, Any]) -> None:
    run = new_run(tmp_path, "j")
    write_json(run.root / "run.json", {**run.record(), **told})
    with pytest.raises(ConfigError, match=r"run\.json: names .* as a directory"):
        run.record()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: it makes a run another user's")
def test_another_users_run_is_not_resumed(tmp_path: Path) -> None:
    run = begun(tmp_path)
    os.chown(run.root, 12345, -1)
    with pytest.raises(
        ConfigError, match="belongs to user 12345, and the commands of its job would run as user 0"
    ):
        vacancy(tmp_path).resume()
    os.chown(run.root, 0, -1)
    vacancy(tmp_path).resume().lease.release()
