"""Prefect is late for `prefect-ft run`, which may be killed meanwhile: all of the run is shown in the end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deaths import assert_right, born, journals, of_type, starts_of, write_job
from proxy import Proxy
from sites import Site

LIMIT_S = 120

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def proxy(site: Site) -> Iterator[Proxy]:
    """Stands between the orchestrators and the server."""
    known = Proxy(site.port)
    yield known
    known.close()


@pytest.fixture
def api(site: Site, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of orchestrators that use the site's server."""
    for name in ("PREFECT_FT_RUNTIME_DIR", "XDG_STATE_HOME", "PREFECT_HOME"):
        monkeypatch.setenv(name, site.env[name])
    return {"PREFECT_API_URL": f"http://127.0.0.1:{proxy.port}/api"}


def flow_runs_of(site: Site, job: Path) -> list[str]:
    """The flow runs that have shown the job's run, the oldest first.

    By what their logs say: a run that was over before Prefect came names none.
    """
    asked = {"sort": "TIMESTAMP_ASC", "limit": 200, "logs": {"level": {"ge_": 20}}}
    hint = f"prefect-ft resume {job.parent / 'model'}"
    found = [
        line["flow_run_id"] for line in site.post("/logs/filter", asked) if line["message"].endswith(hint)
    ]
    return list(dict.fromkeys(found))


def decisions_shown(site: Site, flow_run_ids: list[str]) -> list[str]:
    """The rules of the decisions that are in these flow runs' logs."""
    asked = {"logs": {"flow_run_id": {"any_": flow_run_ids}}, "sort": "TIMESTAMP_ASC", "limit": 200}
    lines = [line["message"] for line in site.post("/logs/filter", asked)]
    return [line.split("rule=")[1].split()[0] for line in lines if "outcome=" in line]


@pytest.mark.parametrize(
    "moment",
    [
        "in_training",
        pytest.param("before_following", marks=pytest.mark.long),
        pytest.param("before_showing", marks=pytest.mark.long),
    ],
)
def test_a_killed_command_is_resumed_and_shown_as_a_whole(
    site: Site, proxy: Proxy, api: dict[str, str], tmp_path: Path, moment: str
) -> None:
    """`in_training`: the server is not up; ranks run in each case."""
    job = write_job(tmp_path)
    if moment == "in_training":
        proxy.hold()
    assert born(job, f"{moment}/flow", as_command=True, **api).wait(LIMIT_S) == -9
    proxy.release()
    assert born(job, as_command=True, **api).wait(LIMIT_S) == 0
    assert_right(job)
    assert sorted(starts_of(job)) == [
        (phase, attempt, rank) for phase, attempt in (("one", 1), ("one", 2), ("two", 1)) for rank in (0, 1)
    ]
    assert_shown(site, job)


def test_a_server_that_comes_late_is_shown_everything(
    site: Site, proxy: Proxy, api: dict[str, str], tmp_path: Path
) -> None:
    job = write_job(tmp_path)
    proxy.hold()
    orchestrator = born(job, as_command=True, **api)
    while not (tmp_path / "starts").exists() or len(starts_of(job)) < 4:  # both ranks, for the second time
        assert orchestrator.poll() is None
        time.sleep(0.05)
    assert flow_runs_of(site, job) == []
    proxy.release()
    assert orchestrator.wait(LIMIT_S) == 0
    assert_right(job)
    assert_shown(site, job)


def assert_shown(site: Site, job: Path) -> None:
    """Each decision has one line of log, and the last flow run has the whole story."""
    told = [
        line["rule"]
        for lines in journals(job.parent / "model").values()
        for line in of_type(lines, "decision")
    ]
    deadline = time.monotonic() + LIMIT_S  # the server stores logs in its own time
    while decisions_shown(site, flow_runs_of(site, job)) != told and time.monotonic() < deadline:
        time.sleep(0.2)
    flow_runs = flow_runs_of(site, job)
    assert decisions_shown(site, flow_runs) == told
    last = site.wait_for(flow_runs[-1], "Completed", "Failed", "Crashed")
    assert last["state_name"] == "Completed"
    page = site.post("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": flow_runs[-1:]}}})
    assert {each["key"] for each in page} >= {"fault-recovery", "restart-ledger"}
    ledger = next(json.loads(each["data"]) for each in page if each["key"] == "restart-ledger")
    assert [row["rule"] for row in ledger] == told
