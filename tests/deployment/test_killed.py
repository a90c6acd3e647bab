"""What Prefect runs is killed: the flow process, its worker, both, the server. The same flow run completes."""

from __future__ import annotations

from pathlib import Path

import pytest
from deaths import assert_right, write_job
from sites import Site

HEARTBEAT_S = 5
"""What the automation is told; Prefect itself sends none so often, and the first one is enough here."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def automations(site: Site) -> None:
    for _ in range(2):  # twice: they are brought up to date and not made again
        site.command("prefect_ft.cli", "install-automations", "--heartbeat-s", str(HEARTBEAT_S))
    assert len(site.post("/automations/filter", {})) == 2


@pytest.mark.parametrize(
    ("victim", "processes"),
    [("flow", 2), ("worker", 1), ("flow+worker", 2), ("server", 1)],
)
def test_the_same_flow_run_completes(
    site: Site,
    automations: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    victim: str,
    processes: int,
) -> None:
    """`processes`: how many flow processes it takes."""
    monkeypatch.setenv("PREFECT_FT_RUNTIME_DIR", site.env["PREFECT_FT_RUNTIME_DIR"])
    job = write_job(tmp_path)
    mark = site.directory / "has-died"
    mark.unlink(missing_ok=True)
    site.start_worker(DEATH=f"in_training/{victim}")
    worker = site.processes[-1]
    flow_run_id = site.begin(job)
    if victim != "flow":
        victim_of_ours = site.processes[0] if victim == "server" else worker
        victim_of_ours.wait(timeout=100)
    if victim == "server":
        site.start_server()
    elif victim != "flow":
        site.start_worker()
    run = site.wait_for(flow_run_id, "Completed", "Failed", "Cancelled")
    assert (run["state_name"], run["run_count"]) == ("Completed", processes)
    assert mark.exists()
    (tmp_path / "orchestrator.log").touch()
    assert_right(job)
    for process in [each for each in site.processes if "worker" in " ".join(map(str, each.args))]:
        site.stop(process)
        site.processes.remove(process)
