"""A secret reaches the ranks, and nothing else that anybody reads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefect_ft import train_flow
from prefect_ft.config import JobConfig
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import IncidentLine

SECRET = "hf_s3cr3t-value"
CODE = """
token = os.environ["HF_TOKEN"]
print("the token is", token)
if restarts == 0: raise ConnectionError(f"refused for {token}")
assert os.environ["SEEN"] == "the job's"
"""

MakeJob = Callable[..., JobConfig]


def everything_in(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text(errors="replace")
        for path in directory.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def told_to_prefect() -> str:
    """All flow runs' parameters and states, and all their logs."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs()
        logs = client._client.post("/logs/filter", json={"limit": 200, "sort": "TIMESTAMP_DESC"}).json()
    return json.dumps([run.model_dump(mode="json") for run in runs]) + json.dumps(logs)


@pytest.fixture
def secret_job(job: MakeJob) -> JobConfig:
    env = {"HF_TOKEN": SECRET, "SEEN": "the secret's"}
    return job(CODE, infrastructure={"secret_env": env}, env={"SEEN": "the job's"})


def test_a_secret_is_told_to_nobody_but_the_ranks(secret_job: JobConfig, tmp_path: Path) -> None:
    (summary,) = train_flow(secret_job)
    assert summary["restarts"] == {"restart_in_place": 1}
    assert [name for name, text in everything_in(tmp_path).items() if SECRET in text] == []
    (journal,) = tmp_path.glob("model/*/journal.jsonl")
    evidence = next(
        line.incident.evidence.text for line in read_lines(journal) if isinstance(line, IncidentLine)
    )
    assert evidence == f"ConnectionError: refused for {'*' * len(SECRET)}"


def holders(directory: Path) -> list[str]:
    """Return the files that hold the secret."""
    return [name for name, text in everything_in(directory).items() if SECRET in text]


def test_a_run_that_failed_keeps_its_secret_until_it_has_completed(
    secret_job: JobConfig, tmp_path: Path
) -> None:
    """`resume` needs it; a run that has completed is not resumed."""
    gone_wrong = secret_job.model_copy(update={"autorestart": None})
    train_flow(gone_wrong, return_state=True)
    (kept,) = holders(tmp_path)
    assert Path(kept).name == "secrets.json"
    assert os.stat(tmp_path / kept).st_mode & 0o777 == 0o600
    train_flow(gone_wrong, unfinished="resume", return_state=True)
    assert holders(tmp_path) == [kept]
    train_flow(secret_job)
    assert holders(tmp_path) == []


def test_prefect_is_not_told(secret_job: JobConfig) -> None:
    import logging

    train_flow(secret_job)
    for handler in logging.getLogger("prefect").handlers:
        handler.flush()
    told = told_to_prefect()
    assert "HF_TOKEN" in told
    assert SECRET not in told


def test_a_run_that_is_gone_on_with_has_its_secrets(secret_job: JobConfig) -> None:
    from prefect_ft.orchestrate.run import begin_run, job_of
    from prefect_ft.run import vacancy

    holding = begin_run(secret_job, vacancy(Path(secret_job.model_dir)))
    holding.lease.release()
    found: Any = job_of(holding.run)
    assert found.infrastructure.secret_env["HF_TOKEN"].get_secret_value() == SECRET
