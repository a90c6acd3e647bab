"""What Prefect shows of a run: log, events, table and page say what the journal says, and nothing waits for them."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import State, StateType
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_API_URL, temporary_settings
from proxy import Proxy

from prefect_ft import train_flow
from prefect_ft.config import JobConfig
from prefect_ft.errors import RunFailedError
from prefect_ft.files import read_json
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import DecisionLine
from prefect_ft.model import Decision
from prefect_ft.observe import AttemptStarted, Fact, PhaseEnded, observed_by
from prefect_ft.prefect_edge.reporting import reporting
from prefect_ft.prefect_edge.reporting.api import OpenApi
from prefect_ft.prefect_edge.reporting.tail import MARK
from prefect_ft.run import latest_run

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


def decisions_of(job: JobConfig) -> list[Decision]:
    (journal,) = Path(job.model_dir).glob("*_restartable/journal.jsonl")
    return [line.decision for line in read_lines(journal) if isinstance(line, DecisionLine)]


def artifacts(client: SyncPrefectClient, flow_run: str, key: str) -> list[Any]:
    """What the artifacts of this key say that a flow run has."""
    asked = {"artifacts": {"flow_run_id": {"any_": [flow_run]}, "key": {"any_": [key]}}}
    return [each["data"] for each in client.request("POST", "/artifacts/filter", json=asked).json()]


def ledger(client: SyncPrefectClient, flow_run: str) -> list[dict[str, Any]]:
    """The rows of a flow run's table."""
    (data,) = artifacts(client, flow_run, "restart-ledger")
    return list(json.loads(data))


def events(client: SyncPrefectClient, flow_run: str, count: int) -> list[tuple[str, Any]]:
    """Our events of a flow run, once so many are there, in the order in which they occurred."""
    asked = {
        "filter": {
            "event": {"prefix": ["prefect-ft."], "exclude_name": ["prefect-ft.ended"]},
            "any_resource": {"id": [f"prefect.flow-run.{flow_run}"]},
            "order": "ASC",
        },
        "limit": 50,
    }

    def look() -> list[Any]:
        return list(client.request("POST", "/events/filter", json=asked).json()["events"])

    return [(event["event"], event["payload"]) for event in wait_for(look, count)]


def lines_of_log(client: SyncPrefectClient, flow_run: str, count: int) -> list[tuple[int, str]]:
    """The lines about decisions in a flow run's log, once so many are there, in the order of time."""

    def look() -> list[Any]:
        logs = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run])), limit=200)
        return sorted([log for log in logs if "outcome=" in log.message], key=lambda log: str(log.timestamp))

    return [(log.level, log.message) for log in wait_for(look, count)]


def state_names(client: SyncPrefectClient, flow_run: str) -> list[str]:
    states = client.request("GET", "/flow_run_states/", params={"flow_run_id": flow_run}).json()
    return [state["name"] for state in sorted(states, key=lambda state: str(state["timestamp"]))]


def test_the_ledger_has_the_rows_of_the_journal(job: Job, client: SyncPrefectClient) -> None:
    config = job(RESTARTED_TWICE)
    train_flow(config)
    rows = ledger(client, flow_run_id(config))
    columns = {"rule": "rule", "action": "action", "reason": "reason", "resume step": "resume_step"}
    assert [{name: row[name] for name in columns} for row in rows] == [
        {name: getattr(line, field) for name, field in columns.items()} for line in decisions_of(config)
    ]
    assert [row["attempt"] for row in rows] == [1, 2, 3]
    assert [row["class"] for row in rows] == ["network", "network", None]
    assert rows[0]["evidence"] == "ConnectionError: reset"
    assert rows[1]["budgets after"] == "failures without progress 2 of 3"
    assert [re.fullmatch(r"[\d.]+ m?s", str(row["time lost"])) is not None for row in rows] == [
        True,
        True,
        False,
    ]


def test_every_restart_and_the_end_are_events_of_the_flow_run(job: Job, client: SyncPrefectClient) -> None:
    config = job(RESTARTED_TWICE)
    train_flow(config)
    found = events(client, flow_run_id(config), 3)
    assert [(name, payload.get("action")) for name, payload in found] == [
        ("prefect-ft.restart", "restart_in_place"),
        ("prefect-ft.restart", "rebuild"),
        ("prefect-ft.phase-completed", None),
    ]


def test_a_run_that_gives_up_says_so(job: Job, client: SyncPrefectClient) -> None:
    config = job("raise AssertionError('never')")
    with pytest.raises(RunFailedError, match="AssertionError: never"):
        train_flow(config)
    flow_run = flow_run_id(config)
    assert [name for name, _ in events(client, flow_run, 1)] == ["prefect-ft.gave-up"]
    state = client.read_flow_run(flow_run).state
    assert state is not None
    assert str(state.message).startswith("Gave up in phase phase-0: assertion «AssertionError: never»")


def test_the_state_says_what_is_done_and_at_the_end_why(job: Job, client: SyncPrefectClient) -> None:
    config = job(RESTARTED_TWICE)
    train_flow(config)
    flow_run = flow_run_id(config)
    names = state_names(client, flow_run)
    assert [name for name in names if name != "Pending"] == [
        "Running", "Restarting in place", "Running", "Rebuilding", "Running", "Completed",
    ]  # fmt: skip
    state = client.read_flow_run(flow_run).state
    assert state is not None
    assert re.fullmatch(
        r"Completed after 2 restarts; [\d.]+% of [\d.]+ m?s was useful work\.", str(state.message)
    )


def test_every_decision_is_a_line_in_the_log_of_the_flow_run(job: Job, client: SyncPrefectClient) -> None:
    config = job(RESTARTED_TWICE)
    train_flow(config)
    logs = lines_of_log(client, flow_run_id(config), 3)
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
    assert "failures_without_progress=2" in logs[1][1]


def test_the_page_tells_the_run_with_a_picture_and_progress_comes_to_its_end(
    job: Job, client: SyncPrefectClient
) -> None:
    beats = "from prefect_ft import heartbeat; heartbeat.beat(step=7)\n"
    config = job(f"{RESTARTED_TWICE}\n{beats}")
    phase = config.phases[0].model_copy(update={"target_step": 7, "mode": "eval", "checkpoints": None})
    config = config.model_copy(update={"phases": (phase,)})
    train_flow(config)
    (page,) = artifacts(client, flow_run_id(config), "fault-recovery")
    assert page.startswith("# test: completed\n\nThe run test completed")
    assert "](data:image/svg+xml;base64," in page
    assert "A connection failed" in page
    assert artifacts(client, flow_run_id(config), "steps-phase-0") == [100.0]


# -- when the API does not answer -------------------------------------------------------------------


@pytest.fixture
def proxy(prefect_server: None) -> Iterator[Proxy]:
    """Stands between what runs in this test and the server; what the test itself asks goes past it."""
    url = urlsplit(str(PREFECT_API_URL.value()))
    assert url.port is not None
    proxy = Proxy(url.port)
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{proxy.port}{url.path}"}):
        yield proxy
    proxy.close()


@pytest.mark.parametrize("trouble", [Proxy.hold, Proxy.refuse], ids=["hangs", "refuses"])
def test_what_could_not_be_shown_is_shown_later_in_order_and_once(
    client: SyncPrefectClient, job: Job, proxy: Proxy, trouble: Callable[[Proxy], None]
) -> None:
    """The API is away from the first attempt on until the phase has ended, two restarts later."""

    def watch(fact: Fact) -> None:
        if isinstance(fact, AttemptStarted) and fact.attempt == 1:
            trouble(proxy)
        elif isinstance(fact, PhaseEnded):
            proxy.release()

    config = job(RESTARTED_TWICE)
    with observed_by(watch):
        (summary,) = train_flow(config)
    assert (summary["status"], summary["restarts"]) == ("completed", {"restart_in_place": 1, "rebuild": 1})
    flow_run = flow_run_id(config)
    found = [(name, payload.get("action")) for name, payload in events(client, flow_run, 3)]
    assert found == [
        ("prefect-ft.restart", "restart_in_place"),
        ("prefect-ft.restart", "rebuild"),
        ("prefect-ft.phase-completed", None),
    ]
    said = [re.findall(r"action=(\w+)", message)[0] for _, message in lines_of_log(client, flow_run, 3)]
    assert said == ["restart_in_place", "rebuild", "complete"]
    assert [row["action"] for row in ledger(client, flow_run)] == said


def test_a_run_ends_where_the_api_never_answers_again(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    never = threading.Event()
    monkeypatch.setattr("prefect_ft.prefect_edge.reporting.reporter.DRAIN_IDLE_S", 0.2)
    monkeypatch.setattr("prefect_ft.prefect_edge.reporting.api.OpenApi.log", lambda *_: never.wait())
    try:
        (summary,) = train_flow(job(RESTARTED_TWICE))
    finally:
        never.set()
    assert (summary["status"], summary["restarts"]) == ("completed", {"restart_in_place": 1, "rebuild": 1})
    assert "some restarts are not shown there" in caplog.text


def test_a_call_of_which_no_answer_came_is_not_made_twice(
    job: Job, monkeypatch: pytest.MonkeyPatch, client: SyncPrefectClient
) -> None:
    """Each kind of call fails once, after the server has taken it."""
    from prefect_ft.prefect_edge.reporting.api import OpenApi

    failed: set[str] = set()

    def once(name: str) -> Callable[..., Any]:
        call = getattr(OpenApi, name)

        def fails(*arguments: Any) -> Any:
            answer = call(*arguments)
            if name not in failed:
                failed.add(name)
                raise ConnectionError("the answer was lost")
            return answer

        return fails

    monkeypatch.setattr("prefect_ft.prefect_edge.reporting.reporter.AGAIN_S", 0.01)
    for name in ("log", "event", "put_artifact"):
        monkeypatch.setattr(OpenApi, name, once(name))
    config = job(RESTARTED_TWICE)
    train_flow(config)
    flow_run = flow_run_id(config)
    assert failed == {"log", "event", "put_artifact"}
    assert len(lines_of_log(client, flow_run, 3)) == 3
    assert len(events(client, flow_run, 3)) == 3
    assert [row["attempt"] for row in ledger(client, flow_run)] == [1, 2, 3]


# -- a comeback -------------------------------------------------------------------------------------


def test_who_comes_back_shows_what_the_one_before_did_not_come_to(
    job: Job, client: SyncPrefectClient
) -> None:
    config = job(RESTARTED_TWICE)
    train_flow(config)
    flow_run = flow_run_id(config)
    (mark,) = Path(config.model_dir).glob(f"*_restartable/{MARK}")
    assert json.loads(mark.read_text()) == {"shown": 4}
    run = latest_run(Path(config.model_dir))
    assert run is not None

    @flow(name="later-life")
    def later() -> None:
        with reporting(run, lambda _: None):
            pass

    for shown, new in ((4, 0), (1, 3), (1, 3)):
        mark.write_text(json.dumps({"shown": shown}))
        state = later(return_state=True)
        again = str(state.state_details.flow_run_id)
        assert len(lines_of_log(client, again, min(new, 2))) == min(new, 2)
        assert json.loads(mark.read_text()) == {"shown": 4}
        assert len(events(client, flow_run, 3)) == 3  # they have their ids


WRAPPED = """
from prefect_ft.inprocess import CallWrapper, Wrapper

def train(call: CallWrapper):
    if call.iteration == 0:
        raise ValueError("a bad batch")

Wrapper()(train)()
"""


def test_a_restart_within_the_processes_is_in_log_and_ledger(job: Job, client: SyncPrefectClient) -> None:
    config = job(WRAPPED)
    train_flow(config)
    told = r"iteration 1 after \d+\.\d ms: rank 0, exception: ValueError: a bad batch"
    restart, end = ledger(client, flow_run_id(config))
    assert (restart["outcome"], restart["action"], end["action"]) == ("in_process", "continue", "complete")
    assert re.fullmatch(told, restart["evidence"])
    (_, line), _ = lines_of_log(client, flow_run_id(config), 2)
    assert re.search(f"outcome=in_process .*{told}", line)


def test_a_cancelled_flow_run_is_told_of_at_the_second_look(
    job: Job, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a worker runs it, its SIGTERM is to come first; where none does, nobody else would tell."""
    config = job("pass")
    train_flow(config)
    run = latest_run(Path(config.model_dir))
    assert run is not None
    happened: list[Any] = []
    is_told = threading.Event()
    look = OpenApi.is_cancelled

    def told(source: str) -> None:
        happened.append(source)
        is_told.set()

    monkeypatch.setattr("prefect_ft.prefect_edge.reporting.reporter.ASK_S", 0.01)
    monkeypatch.setattr("prefect_ft.prefect_edge.reporting.reporter.REFRESH_S", 0.01)
    monkeypatch.setattr(OpenApi, "is_cancelled", lambda api: happened.append(look(api)) or happened[-1])

    @flow(name="cancelled-from-elsewhere")
    def cancelled() -> None:
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        with reporting(run, told):
            client.set_flow_run_state(context.flow_run.id, State(type=StateType.CANCELLING), force=True)
            assert is_told.wait(DEADLINE_S)

    cancelled(return_state=True)
    first = happened.index(True)
    assert happened[first : first + 3] == [True, True, "cancelled in Prefect"]
    assert set(happened[:first]) <= {False}
