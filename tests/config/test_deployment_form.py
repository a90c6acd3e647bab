"""The deployment's form: what Prefect's server makes of the flow's parameters, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import ValidationError, validate

from prefect_ft import train_flow

ROOT = Path(__file__).parents[2]
SCHEMA = parameter_schema(train_flow).model_dump_for_openapi()
JOB = {"name": "x", "model_dir": "m", "phases": [{"name": "p", "command": ["python", "t.py"]}]}


@pytest.mark.parametrize("job", [JOB, "flows/quickstart.yaml"], ids=["a-job", "a-path"])
def test_a_job_or_the_path_of_one_is_taken(job: Any) -> None:
    assert validate({"job": job}, SCHEMA, raise_on_error=True) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"autorestart": {"max_num_restarts": 999}},
            (
                "Validation failed for field 'job.autorestart.max_num_restarts'. Failure reason: 999 is greater "
                "than the maximum of 128"
            ),
        ),
        (
            {"lease_s": 0},
            "Validation failed for field 'job.lease_s'. Failure reason: 0 is less than the minimum of 1",
        ),
    ],
    ids=["out-of-range", "too-short"],
)
def test_a_bad_value_is_refused_and_its_field_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match="Validation failed") as refused:
        validate({"job": JOB | wrong}, SCHEMA, raise_on_error=True)
    assert str(refused.value) == message


def test_the_compose_file_has_what_a_deployment_needs() -> None:
    services = yaml.safe_load((ROOT / "deployments" / "compose.yaml").read_text())["services"]
    assert set(services) == {"postgres", "server", "setup", "worker"}
    pools = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())["deployments"]
    pool = pools[0]["work_pool"]["name"]
    assert f"work-pool create {pool} " in services["setup"]["command"]
    assert f"--pool {pool}" in services["worker"]["command"]


def test_a_worker_that_is_started_again_sets_up_nothing() -> None:
    services = yaml.safe_load((ROOT / "deployments" / "compose.yaml").read_text())["services"]
    assert "install-automations" in services["setup"]["command"]
    assert "install-automations" not in services["worker"]["command"]
    assert services["setup"]["restart"] == "no"
    assert services["worker"]["depends_on"] == {"setup": {"condition": "service_completed_successfully"}}


def test_silence_is_counted_in_the_heartbeats_that_flow_runs_send() -> None:
    services = yaml.safe_load((ROOT / "deployments" / "compose.yaml").read_text())["services"]
    name = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY"
    assert services["setup"]["environment"][name] == services["worker"]["environment"][name]
