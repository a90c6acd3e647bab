"""Prefect comes late to a run that is being executed, or has been: it shows all the same what it would have shown."""

from __future__ import annotations

import gc
import json
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import State

from prefect_ft import train_flow
from prefect_ft.config import JobConfig
from prefect_ft.errors import LeaseLostError
from prefect_ft.observe import AttemptStarted, Fact, Replay, observed_by
from prefect_ft.orchestrate.entering import enter
from prefect_ft.orchestrate.executing import execute
from prefect_ft.orchestrate.live import Begun, Live, begun_run
from prefect_ft.orchestrate.run import end_unwatched, held
from prefect_ft.run import latest_run, vacancy

Job = Callable[..., JobConfig]

DEADLINE_S = 60.0
TWO_PHASES = ("if restarts < 2: raise ConnectionError('reset')", "if restarts < 1: os.abort()")
GIVES_UP = ("raise ConnectionError('reset')",)


@pytest.fixture
def client(prefect_server: None) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as known:
        yield known


class Execution:
    """A run that a thread executes as `prefect-ft run` does; `begun` is for the view."""

    def __init__(self, job: JobConfig) -> None:
        self.begun: Begun | None = None
        self._job = job
        self._has_begun = threading.Event()
        self.restarted = threading.Event()
        self.thread = threading.Thread(target=copy_context().run, args=(self._execute,), daemon=True)
        self.thread.start()
        assert self._has_begun.wait(DEADLINE_S)

    def _execute(self) -> None:
        facts, live = Replay(), Live()
        with suppress(LeaseLostError), observed_by(facts.take), observed_by(self._note):
            entered = enter(self._job, "refuse")
            with held(entered.holding, entered.job) as (_, stop):
                self.begun = Begun(entered.holding.run, live, stop, facts, threading.Event())
                self._has_begun.set()
                execute(entered, stop, live)

    def _note(self, fact: Fact) -> None:
        if isinstance(fact, AttemptStarted) and fact.attempt > 1:
            self.restarted.set()

    def follow(self) -> State[Any]:
        """Have Prefect run the flow that shows it."""
        token = begun_run.set(self.begun)
        try:
            state = train_flow(self._job, return_state=True)
        finally:
            begun_run.reset(token)
        self.thread.join(DEADLINE_S)
        return state  # type: ignore[return-value]


def at_once(job: JobConfig) -> State[Any]:
    return train_flow(job, return_state=True)  # type: ignore[return-value]


def from_its_beginning(job: JobConfig) -> State[Any]:
    return Execution(job).follow()


def in_the_middle(job: JobConfig) -> State[Any]:
    execution = Execution(job)
    assert execution.restarted.wait(DEADLINE_S)
    return execution.follow()


def after_its_end(job: JobConfig) -> State[Any]:
    execution = Execution(job)
    execution.thread.join(DEADLINE_S)
    return execution.follow()


def shown(client: SyncPrefectClient, flow_run_id: str) -> dict[str, Any]:
    """What Prefect shows of a flow run, but for what differs between any two runs."""
    states = client.request("GET", "/flow_run_states/", params={"flow_run_id": flow_run_id}).json()
    tasks = client.request(
        "POST", "/task_runs/filter", json={"task_runs": {"flow_run_id": {"any_": [flow_run_id]}}}
    ).json()
    of_tasks = {}
    for each in tasks:
        found = client.request("GET", "/task_run_states/", params={"task_run_id": each["id"]}).json()
        of_tasks[each["name"]] = [
            state["name"] for state in sorted(found, key=lambda state: state["timestamp"])
        ]
    logs = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run_id])), limit=200)
    asked = {"artifacts": {"flow_run_id": {"any_": [flow_run_id]}}}
    artifacts = client.request("POST", "/artifacts/filter", json=asked).json()
    rows = next(json.loads(each["data"]) for each in artifacts if each["key"] == "restart-ledger")
    return {
        "states": [state["name"] for state in sorted(states, key=lambda state: state["timestamp"])],
        "tasks": of_tasks,
        "decisions": [
            re.sub(r"delay_s=\S+", "", log.message)
            for log in sorted(logs, key=lambda log: str(log.timestamp))
            if "outcome=" in log.message
        ],
        "events": [
            (each["event"], each["payload"].get("rule"), each["payload"].get("action"))
            for each in events(client, flow_run_id)
        ],
        "artifacts": sorted((each["key"], each["type"]) for each in artifacts),
        "ledger": [
            {name: row[name] for name in ("phase", "attempt", "rule", "action", "reason")} for row in rows
        ],
    }


def events(client: SyncPrefectClient, flow_run_id: str) -> list[dict[str, Any]]:
    """Our events of a flow run, once the last of them is there."""
    asked = {
        "filter": {
            "event": {"prefix": ["prefect-ft."]},
            "any_resource": {"id": [f"prefect.flow-run.{flow_run_id}"]},
            "order": "ASC",
        },
        "limit": 50,
    }
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found: list[dict[str, Any]] = client.request("POST", "/events/filter", json=asked).json()["events"]
        if any(each["event"] == "prefect-ft.ended" for each in found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def settled(look: Callable[[], dict[str, Any]], expected: dict[str, Any]) -> dict[str, Any]:
    """Look until it is as expected: what Prefect's server stores in its own time is there after a while."""
    deadline = time.monotonic() + DEADLINE_S
    while (found := look()) != expected and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


@pytest.mark.parametrize(
    "codes",
    [pytest.param(TWO_PHASES, id="completes"), pytest.param(GIVES_UP, id="gives-up", marks=pytest.mark.long)],
)
def test_a_view_that_comes_late_shows_what_one_that_was_there_shows(
    job: Job, client: SyncPrefectClient, tmp_path: Path, codes: tuple[str, ...]
) -> None:
    expected: dict[str, Any] = {}
    for view in (at_once, from_its_beginning, in_the_middle, after_its_end):
        config = job(*codes, model_dir=view.__name__, autorestart={"max_num_restarts": 3})
        state = view(config)
        flow_run_id = str(state.state_details.flow_run_id)
        expected = expected or shown(client, flow_run_id)
        run = latest_run(tmp_path / view.__name__)
        assert run is not None
        assert run.status == ("completed" if codes is TWO_PHASES else "failed")
        found = settled(lambda of=flow_run_id: shown(client, of), expected)  # type: ignore[misc]
        assert found == expected, view.__name__
    assert expected["tasks"]["phase-0"].count("Retrying") >= 2


def test_a_run_that_is_let_go_of_is_not_ended_in_prefect(job: Job, client: SyncPrefectClient) -> None:
    config = job("import time; time.sleep(600)")
    execution = Execution(config)
    assert execution.begun is not None
    execution.begun.stop.abandon(LeaseLostError("another orchestrator has it"))
    execution.thread.join(DEADLINE_S)
    with pytest.raises(BaseException, match="leaves the run: another orchestrator has it"):
        execution.follow()
    end_unwatched(vacancy(Path(config.model_dir)).resume(), "the test is over")
    del execution
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of agents, which another orchestrator may have
        gc.collect()
