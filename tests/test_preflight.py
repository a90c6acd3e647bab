"""What can be known to be wrong before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefect_ft.clock import utc_now
from prefect_ft.config import JobConfig
from prefect_ft.errors import ConfigError
from prefect_ft.pool.quarantine import Quarantined, add
from prefect_ft.preflight import check, quarantined


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
            {"phase": {"command": ["/nowhere/torchrun", "t.py"], "rewrite_launcher": True}},
            "phases[0].command",
            "command not found: '/nowhere/python'",
            id="beside-torchrun",
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


def written(tmp_path: Path, *systems: str) -> str:
    path = tmp_path / "quarantine.jsonl"
    add(path, [Quarantined(system=system, since=utc_now()) for system in systems])
    return str(path)


POOL = {"type": "process", "systems": ["s0", "s1", "s2"], "workers": 2}


@pytest.mark.parametrize(
    ("out", "fields", "found"),
    [
        pytest.param([], {}, (), id="none"),
        pytest.param(["s2", "s1", "elsewhere"], {}, ("s1", "s2"), id="an-elastic-phase-begins-smaller"),
        pytest.param(["s1"], {"phase": {"elastic": False}}, ("s1",), id="a-spare-takes-its-place"),
        pytest.param(
            ["s0", "s1"], {"phase": {"elastic": False}}, "needs 2 systems, and 1 of its 3 may be used: s0, s1 in",
            id="too-few-for-one-that-is-not-elastic",
        ),
        pytest.param(
            ["s0", "s1"],
            {"autorestart": {"max_num_restarts": 1, "min_num_systems": 2}, "phase": {"mode": "eval"}},
            "needs 2 systems, and 1 of its 3 may be used: s0, s1 in",
            id="fewer-than-min-num-systems",
        ),
    ],
)  # fmt: skip
def test_systems_in_quarantine(
    tmp_path: Path, out: list[str], fields: dict[str, Any], found: tuple[str, ...] | str
) -> None:
    configured = job(tmp_path, infrastructure=POOL, quarantine=written(tmp_path, *out), **fields)
    if isinstance(found, tuple):
        assert quarantined(configured) == found
    else:
        with pytest.raises(ConfigError, match=f"quarantine.jsonl: phase train {found}"):
            quarantined(configured)


def test_a_quarantine_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        quarantined(job(tmp_path, quarantine="/proc/x/quarantine.jsonl"))
    assert (caught.value.field, "/proc/x cannot be written" in str(caught.value)) == ("quarantine", True)
