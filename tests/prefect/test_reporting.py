"""What Prefect shows of a run: log, event and table say what the journal says, and nothing waits for them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

from prefect_ft import train_flow
from prefect_ft.config import JobConfig
from prefect_ft.files import read_json
from prefect_ft.journal import Line, read_lines

Job = Callable[..., JobConfig]

RESTARTED_TWICE = "if restarts < 2: raise ConnectionError('reset')"
DEADLINE_S = 60.0
"""What Prefect's server stores in its own time is there within this."""


@pytest.fixture
def client(prefect_server: None) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as known:
        yield known


def wait_for(look: Callable[[], list[Any]], count: int) -> list[Any]:
    """Look until so much is there."""
    deadline = time.monotonic() + DEADLINE_S
    while len(found := look()) < count:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def flow_run_id(job: JobConfig) -> str:
    (run,) = Path(job.model_dir).glob(".prefect-ft/*/run.json")
    return str(read_json(run)["flow_run_id"])


def decisions_of(job: JobConfig) -> list[Line]:
    (journal,) = Path(job.model_dir).glob("*_restartable/journal.jsonl")
    return [line for line in read_lines(journal) if line["type"] == "decision"]


def ledger(client: SyncPrefectClient, flow_run: str) -> list[list[dict[str, Any]]]:
    """The rows of the newest table of a flow run, if there is one."""
    answer = client.request(
        "POST",
        "/artifacts/filter",
        json={
            "artifacts": {"flow_run_id": {"any_": [flow_run]}, "key": {"any_": ["restart-ledger"]}},
            "sort": "CREATED_DESC",
        },
    )
    return [json.loads(artifact["data"]) for artifact in answer.json()][:1]


def test_the_ledger_has_the_rows_of_the_journal(job: Job, client: SyncPrefectClient) -> None:
    config = job(RESTARTED_TWICE)
    train_flow(config)
    (rows,) = ledger(client, flow_run_id(config))
    columns = {"rule": "rule", "action": "action", "reason": "reason", "resume step": "resume_step"}
    assert [{name: row[name] for name in columns} for row in rows] == [
        {name: line[field] for name, field in columns.items()} for line in decisions_of(config)
    ]
    assert [row["attempt"] for row in rows] == [1, 2, 3]
    assert [row["class"] for row in rows] == ["network", "network", None]
    assert rows[0]["evidence"] == "ConnectionError: reset"


def test_every_restart_is_an_event_of_the_flow_run(job: Job, client: SyncPrefectClient) -> None:
    config = job(RESTARTED_TWICE)
    train_flow(config)
    flow_run = flow_run_id(config)
    asked = {"filter": {"event": {"name": ["prefect-ft.restart"]}}, "limit": 50}

    def look() -> list[Any]:
        found = client.request("POST", "/events/filter", json=asked).json()["events"]
        related = f"prefect.flow-run.{flow_run}"
        return [
            event for event in found if related in [each["prefect.resource.id"] for each in event["related"]]
        ]

    events = sorted(wait_for(look, 2), key=lambda event: str(event["occurred"]))
    assert [event["payload"]["action"] for event in events] == ["restart_in_place", "rebuild"]
    assert [event["resource"]["prefect.resource.name"] for event in events] == ["phase-0"] * 2


def test_every_decision_is_a_line_in_the_log_of_the_flow_run(job: Job, client: SyncPrefectClient) -> None:
    config = job(RESTARTED_TWICE)
    train_flow(config)
    flow_run = flow_run_id(config)

    def look() -> list[Any]:
        logs = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run])))
        return [(log.level, log.message) for log in logs if "outcome=" in log.message]

    logs = sorted(wait_for(look, 3), key=lambda log: str(log[1]))
    expected = [
        (
            30,
            "phase=phase-0 attempt=1 outcome=exit class=network rule=transient action=restart_in_place delay_s=0",
        ),
        (30, "phase=phase-0 attempt=2 outcome=exit class=network rule=transient action=rebuild delay_s=0"),
        (20, "phase=phase-0 attempt=3 outcome=completed class=None rule=completed action=complete delay_s=0"),
    ]
    for (level, message), (expected_level, beginning) in zip(logs, expected, strict=True):
        assert (level, message[: len(beginning)]) == (expected_level, beginning)
    assert "evidence='ConnectionError: reset'" in logs[0][1]


# -- when the API does not answer -------------------------------------------------------------------


def test_nothing_waits_for_an_api_that_hangs(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers, asked = threading.Event(), threading.Event()

    def hang(*_: Any, **__: Any) -> None:
        asked.set()
        answers.wait()

    monkeypatch.setattr("prefect_ft.reporting.DRAIN_S", 0.1)
    monkeypatch.setattr("prefect_ft.reporting.create_table_artifact", hang)
    try:
        summary = train_flow(job(RESTARTED_TWICE))[0]
    finally:
        answers.set()
    assert asked.is_set()
    assert (summary["status"], summary["restarts"]) == ("completed", {"restart_in_place": 1, "rebuild": 1})
    assert "some restarts are not shown there" in caplog.text


@pytest.mark.parametrize("call", ["create_table_artifact", "emit_event"])
def test_an_api_that_fails_costs_only_what_it_would_have_shown(
    job: Job, monkeypatch: pytest.MonkeyPatch, client: SyncPrefectClient, call: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no server")

    monkeypatch.setattr(f"prefect_ft.reporting.{call}", fail)
    config = job(RESTARTED_TWICE)
    assert train_flow(config)[0]["status"] == "completed"
    shown = 0 if call == "create_table_artifact" else 3
    assert sum(map(len, ledger(client, flow_run_id(config)))) == shown


def test_a_table_that_was_late_has_all_its_rows(
    job: Job, monkeypatch: pytest.MonkeyPatch, client: SyncPrefectClient
) -> None:
    """The end of the run is in the queue before the reporter has come to the last decision."""
    from prefect_ft import reporting

    is_over = threading.Event()
    show = reporting.create_table_artifact
    close = reporting._Reporter.close

    def slow(*arguments: Any, **named: Any) -> Any:
        is_over.wait()
        return show(*arguments, **named)

    def closing(reporter: Any) -> None:
        reporter._queue.put(None)
        is_over.set()
        close(reporter)

    monkeypatch.setattr(reporting, "create_table_artifact", slow)
    monkeypatch.setattr(reporting._Reporter, "close", closing)
    config = job(RESTARTED_TWICE)
    train_flow(config)
    (rows,) = ledger(client, flow_run_id(config))
    assert len(rows) == len(decisions_of(config)) == 3
