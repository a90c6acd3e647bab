"""`prefect deployment run train-flow/default` against a server and a process worker of the test's own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from deaths import journals, of_type
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


@pytest.fixture(params=["sqlite", "postgres"])
def stored(request: pytest.FixtureRequest) -> Site:
    """A site for each database that a server can store in; its job is a small one."""
    site: Site = request.getfixturevalue("site" if request.param == "sqlite" else "site_on_postgres")
    assert (site.directory / "home" / "prefect.db").exists() == (request.param == "sqlite")
    (site.directory / "ck").mkdir()
    (site.directory / "script.py").write_text(SCRIPT)
    (site.directory / "flows" / "quickstart.yaml").write_text(
        "name: small\nmodel_dir: ../model\ncwd: ..\nautorestart: {max_num_restarts: 3}\n"
        "phases: [{name: train, command: [python, script.py], checkpoints: {path: ../ck}}]\n"
    )
    return site


def of_run(site: Site, flow_run_id: str) -> dict[str, Any]:
    """What the API has of a flow run: states from its start on, task runs, warnings, our events, artifacts by key."""
    this = {"flow_runs": {"id": {"any_": [flow_run_id]}}}
    told = {"any_resource": {"id": [f"prefect.flow-run.{flow_run_id}"]}, "event": {"prefix": ["prefect-ft."]}}
    artifacts = {"artifacts": {"flow_run_id": {"any_": [flow_run_id]}}}
    return {
        "states": [
            state["name"] for state in site.states(flow_run_id) if state["type"] in ("RUNNING", "COMPLETED")
        ],
        "tasks": [
            (task["name"], task["run_count"], task["state_name"])
            for task in site.post("/task_runs/filter", this)
        ],
        "warnings": [
            line["message"]
            for line in site.post("/logs/filter", {"logs": {"flow_run_id": {"any_": [flow_run_id]}}})
            if line["level"] == 30
        ],
        "events": {
            (event["event"], event["payload"].get("rule"))
            for event in site.post("/events/filter", {"filter": told})["events"]
        },
        "artifacts": {each["key"]: each["data"] for each in site.post("/artifacts/filter", artifacts)},
    }


@pytest.mark.timeout(300)
def test_a_deployed_run_survives_a_crash_and_shows_it(stored: Site) -> None:
    stored.start_worker()
    stored.prefect("deployment", "run", "train-flow/default", "--watch", timeout_s=200)

    (run,) = stored.post("/flow_runs/filter", {})
    found = of_run(stored, run["id"])
    assert found["states"] == ["Running", "Restarting in place", "Running", "Completed"]
    assert found["tasks"] == [("train", 2, "Completed")]
    (warning,) = found["warnings"]
    assert "rule=transient action=restart_in_place" in warning
    assert found["events"] >= {
        ("prefect-ft.restart", "transient"), ("prefect-ft.phase-completed", None), ("prefect-ft.ended", None),
    }  # fmt: skip
    assert set(found["artifacts"]) == {"restart-ledger", "fault-recovery"}
    (lines,) = journals(stored.directory / "model").values()
    columns = {"rule": "rule", "action": "action", "reason": "reason", "resume step": "resume_step"}
    rows = [{name: row[name] for name in columns} for row in json.loads(found["artifacts"]["restart-ledger"])]
    assert rows == [
        {name: line[field] for name, field in columns.items()} for line in of_type(lines, "decision")
    ]
    assert [row["rule"] for row in rows] == ["transient", "completed"]
    stored.stop(stored.processes.pop())
