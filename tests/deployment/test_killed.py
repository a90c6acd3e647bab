"""What Prefect runs is killed: the flow process, its worker, both, the server. The same flow run completes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import processes_of
from deaths import assert_right, journals, of_type, write_job
from sites import Site

from prefect_ft.cli.automations import WHEN_CANCELLED, WHEN_SILENT
from prefect_ft.run import latest_run

HEARTBEAT_S = 5
"""What the automation is told; Prefect itself sends none so often, and the first one is enough here."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def automations(site: Site) -> None:
    site.command("prefect_ft.cli", "install-automations", "--heartbeat-s", str(HEARTBEAT_S))


def ours(site: Site) -> dict[str, str]:
    """Return the ids of the automations, by name."""
    known = site.post("/automations/filter", {})
    return {each["name"]: each["id"] for each in known if "comes back" in each["name"]}


def test_automations_that_are_the_same_are_left_alone(site: Site, automations: None) -> None:
    """A new one would not know for which flow runs the old one was waiting."""
    before = ours(site)
    assert len(before) == 3
    install = ("prefect_ft.cli", "install-automations", "--heartbeat-s")
    assert site.command(*install, str(HEARTBEAT_S)).count("unchanged: ") == 3
    assert ours(site) == before
    assert site.command(*install, "7").count("installed: ") == 2
    changed = ours(site)
    site.command(*install, str(HEARTBEAT_S))
    assert {name for name in before if changed[name] != before[name]} == {WHEN_SILENT, WHEN_CANCELLED}


@pytest.mark.long  # 15 s of silence
def test_a_flow_run_without_a_deployment_is_marked_as_crashed_and_says_what_to_do(
    site: Site, automations: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker would ever start it again."""
    runtime = site.env["PREFECT_FT_RUNTIME_DIR"]
    monkeypatch.setenv("PREFECT_FT_RUNTIME_DIR", runtime)
    job = write_job(tmp_path)
    (tmp_path / "train.py").write_text(
        "import os, time\nopen('up', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
    )
    job.write_text(job.read_text().replace("target_step: 30, ", ""))
    with (tmp_path / "output").open("wb") as output:
        orchestrator = subprocess.Popen(
            [sys.executable, "-m", "prefect_ft.cli", "run", str(job)],
            cwd=tmp_path, env=site.env, stdout=output, stderr=output,
        )  # fmt: skip
    while not (tmp_path / "up").exists():
        assert orchestrator.poll() is None, (tmp_path / "output").read_text()
        time.sleep(0.02)
    while not (found := lines_with(site, f"prefect-ft resume {tmp_path / 'model'}")):
        assert orchestrator.poll() is None
        time.sleep(0.1)
    orchestrator.kill()
    orchestrator.wait()
    flow_run = site.wait_for(found[0]["flow_run_id"], "Crashed", "AwaitingRetry")
    assert flow_run["state_name"] == "Crashed"
    assert "prefect-ft resume MODEL_DIR" in flow_run["state"]["message"]
    (tmp_path / "go").touch()
    site.command("prefect_ft.cli", "resume", str(tmp_path / "model"))
    assert site.flow_run(flow_run["id"])["state_name"] == "Crashed"


def lines_with(site: Site, text: str) -> list[dict[str, Any]]:
    asked = {"logs": {"level": {"ge_": 20}}, "sort": "TIMESTAMP_DESC"}
    return [line for line in site.post("/logs/filter", asked) if text in line["message"]]


@pytest.fixture(autouse=True)
def no_worker_left(site: Site) -> Iterator[None]:
    """The next test's flow runs are not for this one's workers."""
    yield
    for process in [each for each in site.processes if "worker" in " ".join(map(str, each.args))]:
        site.stop(process)
        site.processes.remove(process)


@pytest.mark.parametrize(
    ("victim", "processes"),
    [
        ("flow", 2),
        pytest.param("worker", 1, marks=pytest.mark.long),  # a minute each
        pytest.param("flow+worker", 2, marks=pytest.mark.long),
        pytest.param("server", 1, marks=pytest.mark.long),
    ],
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
    assert run["state_name"] == "Completed"
    # A server that was away, or a machine that is slow, may take its own silence for the process's: whom it sends
    # then leaves the run alone.
    assert site.times_begun(flow_run_id) - processes in (0, 1)
    assert mark.exists()
    (tmp_path / "orchestrator.log").touch()
    assert_right(job)
    if (
        victim != "server"
    ):  # what Prefect's client had not sent when the server died may be lost: its own matter
        expected = ["Completed"] * 2 + ["Crashed"] * (processes - 1)
        site.wait_for_task_runs(flow_run_id, expected)


@pytest.mark.long
def test_a_flow_run_that_is_cancelled_in_prefect_ends_its_ranks(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = site.env["PREFECT_FT_RUNTIME_DIR"]
    monkeypatch.setenv("PREFECT_FT_RUNTIME_DIR", runtime)
    job = write_job(tmp_path)
    (tmp_path / "train.py").write_text("import os, signal\nopen('up', 'w').close()\nsignal.pause()\n")
    site.start_worker()
    flow_run_id = site.begin(job)
    while not (tmp_path / "up").exists():
        assert site.flow_run(flow_run_id)["state_name"] not in ("Failed", "Crashed")
        time.sleep(0.1)
    site.prefect("flow-run", "cancel", flow_run_id)
    assert (
        site.wait_for(flow_run_id, "Completed", "Failed", "Crashed", "Cancelled")["state_name"] == "Cancelled"
    )
    run = latest_run(tmp_path / "model")
    assert run is not None
    while run.status == "running":
        time.sleep(0.1)
    assert run.status == "cancelled"
    assert processes_of(Path(runtime) / run.run_id) == {}
    (told,) = journals(tmp_path / "model").values()
    assert [line["rule"] for line in of_type(told, "decision")] == ["cancelled"]


TRAINS_FOR_EVER = """
import signal
from prefect_ft import heartbeat
for step in range(1, 13):
    heartbeat.beat(step=step)
signal.pause()
"""


@pytest.mark.long  # a minute each
@pytest.mark.parametrize("state", ["Running", "AwaitingRetry"])
def test_a_flow_run_that_is_cancelled_while_it_has_no_process_ends_its_ranks(
    site: Site, automations: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """`state`: that of the flow run, of which the process and its worker have been killed."""
    monkeypatch.setenv("PREFECT_FT_RUNTIME_DIR", site.env["PREFECT_FT_RUNTIME_DIR"])
    job = write_job(tmp_path)
    (tmp_path / "train.py").write_text(TRAINS_FOR_EVER)
    (site.directory / "has-died").unlink(missing_ok=True)
    site.start_worker(DEATH="in_training/flow+worker")
    flow_run_id = site.begin(job)
    site.processes[-1].wait(timeout=100)
    site.wait_for(flow_run_id, state)
    run = latest_run(tmp_path / "model")
    assert run is not None
    runtime = Path(site.env["PREFECT_FT_RUNTIME_DIR"]) / run.run_id
    ranks = processes_of(runtime)

    # As `prefect flow-run cancel` does it, whose start may take longer than the automations wait for heartbeats.
    site.post(f"/flow_runs/{flow_run_id}/set_state", {"state": {"type": "CANCELLING"}})
    assert site.flow_run(flow_run_id)["state_name"] == "Cancelling"
    assert processes_of(runtime) == ranks  # nobody hears it yet
    site.start_worker()
    assert site.wait_for(flow_run_id, "Completed", "Failed", "Cancelled")["state_name"] == "Cancelled"
    assert run.status == "cancelled"
    assert processes_of(runtime) == {}
    (told,) = journals(tmp_path / "model").values()
    assert [line["rule"] for line in of_type(told, "decision")] == ["cancelled"]
    assert [line["evidence"]["text"] for line in of_type(told, "incident")] == ["cancelled in Prefect"]


@pytest.mark.long  # a minute
def test_a_flow_run_that_is_brought_back_while_it_lives_is_left_to_its_first_process(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One death can bring a flow run back twice, and a false alarm can do so without any."""
    monkeypatch.setenv("PREFECT_FT_RUNTIME_DIR", site.env["PREFECT_FT_RUNTIME_DIR"])
    job = write_job(tmp_path)
    (tmp_path / "train.py").write_text(
        "import os, time\nopen('up', 'a').write(os.environ['RANK'])\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"
    )
    job.write_text(job.read_text().replace("target_step: 30, ", ""))
    site.start_worker()
    worker_log = site.directory / "worker.log"
    flow_run_id = site.begin(job)
    while not (tmp_path / "up").exists():
        time.sleep(0.1)
    state = {"type": "SCHEDULED", "name": "AwaitingRetry"}
    site.post(f"/flow_runs/{flow_run_id}/set_state", {"state": state, "force": True})
    deadline = time.monotonic() + 100
    while f"'{flow_run_id}' aborted by orchestrator" not in worker_log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (tmp_path / "go").touch()
    assert site.wait_for(flow_run_id, "Completed", "Failed", "Cancelled")["state_name"] == "Completed"
    for lines in journals(tmp_path / "model").values():
        assert of_type(lines, "comeback") == []
        assert [line["rule"] for line in of_type(lines, "decision")] == ["completed"]
