"""secret_env: taken like any environment, told by nothing that is printed, written down or complained of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from prefect_ft.config import JobConfig, load_job, resolved, secrets_of, with_secrets
from prefect_ft.errors import ConfigError

SECRET = "hf_s3cr3t"


def job(tmp_path: Path, secret_env: str, of_phase: str = "") -> JobConfig:
    path = tmp_path / "job.yaml"
    path.write_text(
        f"name: j\nmodel_dir: m\ninfrastructure:\n  secret_env: {secret_env}\n"
        f"phases:\n  - {{name: p, mode: eval, command: [c]{of_phase}}}\n"
    )
    return load_job(path)


def test_a_job_shows_no_value_anywhere(tmp_path: Path) -> None:
    made = job(tmp_path, f"{{HF_TOKEN: {SECRET}}}")
    for shown in (repr(made), str(made), json.dumps(resolved(made)), made.model_dump_json()):
        assert "HF_TOKEN" in shown
        assert SECRET not in shown


def test_what_is_kept_apart_makes_the_job_whole_again(tmp_path: Path) -> None:
    own = ", infrastructure: {secret_env: {B: 12345}}"
    made = job(tmp_path, f"{{HF_TOKEN: {SECRET}}}", own)
    kept = secrets_of(made)
    assert kept == {"": {"HF_TOKEN": SECRET}, "p": {"B": "12345"}}
    assert JobConfig.model_validate(with_secrets(resolved(made), kept)) == made


def test_a_job_without_its_secrets_is_refused(tmp_path: Path) -> None:
    masked = with_secrets(resolved(job(tmp_path, f"{{HF_TOKEN: {SECRET}}}")), {})
    with pytest.raises(ValidationError, match="is masked; give the value that this stands for"):
        JobConfig.model_validate(masked)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        pytest.param("{A: [hf_s3cr3t]}", "secret_env.A: must be text without a NUL character", id="list"),
        pytest.param("hf_s3cr3t", "secret_env: must be a mapping of names to text", id="no-mapping"),
        pytest.param("{'A=B': hf_s3cr3t}", "the name of a variable must be text without =", id="name"),
    ],
)
def test_a_complaint_does_not_repeat_a_value_of_a_mapping(tmp_path: Path, written: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        job(tmp_path, written)
    assert written == SECRET or SECRET not in str(error.value)


def test_pydantics_own_words_show_no_input() -> None:
    document = {"name": 1, "model_dir": "m", "infrastructure": {"secret_env": {"A": SECRET}}, "phases": []}
    with pytest.raises(ValidationError) as error:
        JobConfig.model_validate(document)
    assert SECRET not in str(error.value)
