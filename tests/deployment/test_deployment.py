"""`prefect deployment run train-flow/…` against a server and a process worker of the test's own; what it sets off."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

import pytest
from deaths import journals, of_type
from engine import IMAGE
from eventual import eventually
from sites import DEADLINE_S, Site

SCRIPT = """
import os, zipfile
if os.environ["RANK"] == "0":
    with zipfile.ZipFile("ck/.tmp", "w") as file:
        file.writestr("weights", "x")
    os.replace("ck/.tmp", "ck/step-5.npz")
if os.environ["PREFECT_FT_RESTART_COUNT"] == "0":
    os.abort()
"""


# With SQLite only at length: test_killed.py does the same and more.
@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.long), "postgres"])
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


def run_of(site: Site, deployment: str) -> str:
    """Return the newest flow run of a deployment: other tests may have made some before."""
    asked = {"deployments": {"name": {"any_": [deployment]}}, "sort": "EXPECTED_START_TIME_DESC"}
    return str(site.post("/flow_runs/filter", asked)[0]["id"])


def of_run(site: Site, flow_run_id: str) -> dict[str, Any]:
    """What the API has of a flow run: states from its start on, task runs, warnings, artifacts by key."""
    this = {"flow_runs": {"id": {"any_": [flow_run_id]}}}
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
        "artifacts": {each["key"]: each["data"] for each in site.post("/artifacts/filter", artifacts)},
    }


def await_events(site: Site, flow_run_id: str, expected: set[tuple[str, str | None]]) -> None:
    """Wait until the server has stored these events, each with its rule: it does so some seconds later."""
    told = {"any_resource": {"id": [f"prefect.flow-run.{flow_run_id}"]}, "event": {"prefix": ["prefect-ft."]}}
    deadline = time.monotonic() + DEADLINE_S
    while True:
        events = site.post("/events/filter", {"filter": told})["events"]
        found = {(event["event"], event["payload"].get("rule")) for event in events}
        if found >= expected:
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


@pytest.mark.timeout(300)
def test_a_deployed_run_survives_a_crash_and_shows_it(stored: Site) -> None:
    stored.start_worker()
    stored.prefect("deployment", "run", "train-flow/default", "--watch", timeout_s=200)

    flow_run_id = run_of(stored, "default")
    stored.wait_for_task_runs(flow_run_id, ["Completed"])
    assert eventually(lambda: len(of_run(stored, flow_run_id)["warnings"]), 1) == 1
    found = of_run(stored, flow_run_id)
    assert found["states"] == ["Running", "Restarting in place", "Running", "Completed"]
    assert found["tasks"] == [("train", 2, "Completed")]
    (warning,) = found["warnings"]
    assert "rule=transient action=restart_in_place" in warning
    await_events(
        stored,
        flow_run_id,
        {
            ("prefect-ft.restart", "transient"),
            ("prefect-ft.phase-completed", None),
            ("prefect-ft.ended", None),
        },
    )
    assert set(found["artifacts"]) == {"restart-ledger", "fault-recovery"}
    (lines,) = journals(stored.directory / "model").values()
    columns = {"rule": "rule", "action": "action", "reason": "reason", "resume step": "resume_step"}
    rows = [{name: row[name] for name in columns} for row in json.loads(found["artifacts"]["restart-ledger"])]
    assert rows == [
        {name: line[field] for name, field in columns.items()} for line in of_type(lines, "decision")
    ]
    assert [row["rule"] for row in rows] == ["transient", "completed"]
    stored.stop(stored.processes.pop())


@pytest.mark.long  # half a minute, and the engine comes up before it
@pytest.mark.timeout(300)
def test_the_deployment_with_containers_does_the_same(site: Site, docker_engine: str) -> None:
    (site.directory / "in-docker").mkdir()
    (site.directory / "flows" / "quickstart-docker.yaml").write_text(
        "name: small\nmodel_dir: ../in-docker/model\nautorestart: {max_num_restarts: 3}\n"
        f"infrastructure: {{type: docker, engine: '{docker_engine}', image: '{IMAGE}', pull: never}}\n"
        "phases: [{name: train, mode: eval, command: [python, -c, "
        '\'import os; os.environ["PREFECT_FT_RESTART_COUNT"] != "0" or os.abort()\']}]\n'
    )
    site.start_worker()
    site.prefect("deployment", "run", "train-flow/docker", "--watch", timeout_s=200)
    assert of_run(site, run_of(site, "docker"))["states"] == [
        "Running", "Restarting in place", "Running", "Completed",
    ]  # fmt: skip
    site.stop(site.processes.pop())


# -- automations ------------------------------------------------------------------------------------

LOST_AND_GIVES_UP = """
import os, sys
if os.environ["PREFECT_FT_RESTART_COUNT"] == "0":
    sys.exit("NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus")
assert not "right"
"""


@pytest.mark.long  # waits for the server to notice, 45 s
@pytest.mark.timeout(300)
def test_the_example_automations_fire_when_they_say(site: Site) -> None:
    """A run in which a system is isolated, and which gives up after it was asked whether to."""
    site.prefect("automation", "create", "--from-file", "deployments/automations.yaml")
    (site.directory / "lost.py").write_text(LOST_AND_GIVES_UP)
    job = site.directory / "lost.yaml"
    job.write_text(
        "name: lost\nmodel_dir: lost\ninfrastructure: {type: process, systems: [a0, a1], workers: 1}\n"
        "autorestart: {max_num_restarts: 3, ask_before: [fail], ask_timeout_s: 3}\n"
        "phases: [{name: train, mode: eval, command: [python, lost.py]}]\n"
    )
    site.command("prefect_ft.cli", "run", str(job), returns=1)
    wanted = {
        "prefect-ft: a run gave up": 1,
        "prefect-ft: a system was isolated": 1,
        "prefect-ft: somebody is waited for": 1,
    }
    deadline = time.monotonic() + DEADLINE_S
    while (fired := times_fired(site, wanted)) != wanted:
        assert time.monotonic() < deadline, fired
        time.sleep(0.2)


def times_fired(site: Site, names: Iterable[str]) -> dict[str, int]:
    """Count the actions of automations that were carried out."""
    asked = {"filter": {"event": {"name": ["prefect.automation.action.executed"]}}, "limit": 50}
    told = [
        event["resource"]["prefect.resource.name"] for event in site.post("/events/filter", asked)["events"]
    ]
    return {name: told.count(name) for name in names}
