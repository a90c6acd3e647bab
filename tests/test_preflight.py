"""What can be known to be wrong before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefect_ft.config import JobConfig
from prefect_ft.errors import ConfigError
from prefect_ft.preflight import check


def job(tmp_path: Path, *, phase: dict[str, Any] | None = None, **fields: Any) -> JobConfig:
    document = {
        "name": "test",
        "model_dir": "model",
        "phases": [{"name": "train", "command": ["true"], **(phase or {})}],
    }
    return JobConfig.model_validate({**document, **fields}).at(tmp_path)


def test_a_job_that_can_run_leaves_only_directories(tmp_path: Path) -> None:
    check(job(tmp_path, phase={"checkpoints": {"path": "ck"}}, journal_dir="journals"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["ck", "journals", "model"]


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        pytest.param({"model_dir": "/proc/x"}, "model_dir", "/proc/x cannot be written", id="model-dir"),
        pytest.param(
            {"journal_dir": "/proc/x"}, "journal_dir", "/proc/x cannot be written", id="journal-dir"
        ),
        pytest.param({"phase": {"cwd": "gone"}}, "phases[0].cwd", "gone is not a directory", id="cwd"),
        pytest.param(
            {"phase": {"checkpoints": {"path": "/proc/x"}}},
            "phases[0].checkpoints.path",
            "/proc/x cannot be written",
            id="checkpoints",
        ),
        pytest.param(
            {"phase": {"command": ["no-such-program"]}},
            "phases[0].command",
            "command not found: 'no-such-program'",
            id="command-on-path",
        ),
        pytest.param(
            {"phase": {"command": ["true"], "env": {"PATH": "/nowhere"}}},
            "phases[0].command",
            "command not found: 'true'",
            id="on-the-ranks-path",
        ),
        pytest.param(
            {"phase": {"command": ["./program"]}},
            "phases[0].command",
            "command not found: './program'",
            id="command",
        ),
    ],
)
def test_what_cannot_work_is_said_with_its_field(
    tmp_path: Path, fields: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check(job(tmp_path, **fields))
    assert caught.value.field == field
    assert message in caught.value.message


def test_a_program_in_the_directory_of_the_phase_is_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "program").write_text("#!/bin/sh\n")
    (tmp_path / "sub" / "program").chmod(0o755)
    check(job(tmp_path, phase={"command": ["./program"], "cwd": "sub"}))
