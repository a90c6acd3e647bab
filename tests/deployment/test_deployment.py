"""`prefect deployment run train-flow/default` against a server and a process worker of the test's own."""

from __future__ import annotations

import json

import pytest
from sites import Site

SCRIPT = """
import os, zipfile
if os.environ["RANK"] == "0":
    with zipfile.ZipFile("ck/.tmp", "w") as file:
        file.writestr("weights", "x")
    os.replace("ck/.tmp", "ck/step-5.npz")
if os.environ["PREFECT_FT_RESTART_COUNT"] == "0":
    os.abort()
"""


@pytest.fixture
def small_job(site: Site) -> None:
    """A small job in the place of the quickstart's."""
    (site.directory / "ck").mkdir()
    (site.directory / "script.py").write_text(SCRIPT)
    (site.directory / "flows" / "quickstart.yaml").write_text(
        "name: small\nmodel_dir: ../model\ncwd: ..\nautorestart: {max_num_restarts: 3}\n"
        "phases: [{name: train, command: [python, script.py], checkpoints: {path: ../ck}}]\n"
    )


@pytest.mark.timeout(300)
def test_a_deployed_run_survives_a_crash_and_shows_it(site: Site, small_job: None) -> None:
    site.start_worker()
    site.prefect("deployment", "run", "train-flow/default", "--watch", timeout_s=200)

    runs = site.post("/flow_runs/filter", {})
    assert [run["state_name"] for run in runs] == ["Completed"], runs
    tasks = site.post("/task_runs/filter", {})
    assert [(task["name"], task["run_count"], task["state_name"]) for task in tasks] == [
        ("train", 2, "Completed")
    ]
    warnings = [line["message"] for line in site.post("/logs/filter", {}) if line["level"] == 30]
    assert any("rule=transient action=restart_in_place" in str(message) for message in warnings), warnings
    artifacts = {each["key"]: each["data"] for each in site.post("/artifacts/latest/filter", {})}
    assert set(artifacts) == {"restart-ledger", "fault-recovery"}
    rows = json.loads(str(artifacts["restart-ledger"]))
    assert [(row["rule"], row["action"]) for row in rows] == [
        ("transient", "restart_in_place"),
        ("completed", "complete"),
    ]
    site.stop(site.processes.pop())
