"""A decision that waits for a person pauses the flow run in Prefect, and is answered by its form as by `approve`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State, StateDetails, StateType
from prefect.states import Running

from prefect_ft import train_flow
from prefect_ft.cli import main
from prefect_ft.config import JobConfig
from prefect_ft.errors import RunFailedError
from prefect_ft.files import read_json
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import AnswerLine, PhaseLine, ProposedLine
from prefect_ft.model import Answer
from prefect_ft.prefect_edge.reporting.api import FlowRunApi
from prefect_ft.prefect_edge.reporting.question import Question, question_in
from prefect_ft.run import latest_run

Job = Callable[..., JobConfig]
DEADLINE_S = 60.0

GIVES_UP_ONCE = "assert restarts, 'never'"
WAITING = "Waiting for approval"


@pytest.fixture
def client(prefect_server: None) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as known:
        yield known


class Asked:
    """A run whose first attempt fails for good, which a person is asked about."""

    def __init__(self, config: JobConfig, client: SyncPrefectClient) -> None:
        self._config, self._client = config, client
        self._pool = ThreadPoolExecutor(1)

    def begin(self) -> None:
        """Run it beside this thread, until Prefect asks."""
        self.end = self._pool.submit(train_flow, self._config)
        self._pool.shutdown(wait=False)
        deadline = time.monotonic() + DEADLINE_S
        while self.state.type is not StateType.PAUSED:
            assert time.monotonic() < deadline, self.state
            time.sleep(0.05)

    @property
    def flow_run(self) -> str:
        (path,) = Path(self._config.model_dir).glob(".prefect-ft/*/run.json")
        return str(read_json(path)["flow_run_id"])

    @property
    def state(self) -> State[Any]:
        try:
            found = self._client.read_flow_run(self.flow_run).state
        except (ValueError, LookupError):
            found = None
        return found or State(type=StateType.PENDING)

    def fill_in(self, **form: str) -> str:
        """Fill in the form as the page does; return whether it is taken, and why not."""
        path = f"/flow_runs/{self.flow_run}/resume"
        told = self._client.request("POST", path, json={"run_input": form}).json()
        return str(told["details"].get("reason") or told["status"])

    def state_names(self) -> list[str]:
        states = self._client.request(
            "GET", "/flow_run_states/", params={"flow_run_id": self.flow_run}
        ).json()
        told = sorted(states, key=lambda state: str(state["timestamp"]))
        return [state["name"] for state in told if state["type"] != "PENDING"]

    def answer(self) -> tuple[str, str | None, str]:
        """What the journal says was answered, and by whom."""
        (journal,) = Path(self._config.model_dir).glob("*_restartable/journal.jsonl")
        (line,) = [line for line in read_lines(journal) if isinstance(line, AnswerLine)]
        return (line.answer, line.action, line.by)


@pytest.fixture
def asked(job: Job, client: SyncPrefectClient) -> Callable[..., Asked]:
    def begin(**fields: Any) -> Asked:
        policy = {"max_num_restarts": 3, "ask_before": ["fail"], "ask_timeout_s": 40, **fields}
        run = Asked(job(GIVES_UP_ONCE, autorestart=policy), client)
        run.begin()
        return run

    return begin


@pytest.mark.long  # a browser, 15 s
def test_the_form_is_filled_in_on_the_page_of_the_flow_run(asked: Callable[..., Asked]) -> None:
    run = asked()
    assert run.state.message is not None
    assert "never" in run.state.message
    assert "is not one of" in run.fill_in(answer="perhaps")
    assert "'answer' is a required property" in run.fill_in()
    assert run.fill_in(answer="restart_in_place", by="Ada") == "ACCEPT"
    (summary,) = run.end.result(DEADLINE_S)
    assert summary["restarts"] == {"restart_in_place": 1}
    assert run.answer() == ("change", "restart_in_place", "Ada")
    assert run.state_names() == [
        "Running", WAITING, "Running", "Restarting in place", "Running", "Completed",
    ]  # fmt: skip


def test_who_answers_elsewhere_ends_the_pause(asked: Callable[..., Asked]) -> None:
    run = asked()
    known = latest_run(Path(run._config.model_dir))
    assert known is not None
    assert main(["approve", known.run_id, "--reject", "--by", "Bob"]) == 0
    run.end.result(DEADLINE_S)
    assert run.answer() == ("reject", None, "Bob")
    assert run.state_names() == ["Running", WAITING, "Restarting in place", "Running", "Completed"]


def test_a_pause_that_nobody_ends_is_over_with_the_time(asked: Callable[..., Asked]) -> None:
    run = asked(ask_timeout_s=5)
    with pytest.raises(RunFailedError):
        run.end.result(DEADLINE_S)
    assert run.answer() == ("approve", None, "nobody within the time")
    assert run.state_names() == ["Running", WAITING, "Failed"]


# -- the pause itself -------------------------------------------------------------------------------

QUESTION = Question(
    key="key", directory="d", number=1, message="why", description="what",
    choices={"approve": Answer(answer="approve", by="")},
)  # fmt: skip


@flow(name="asked")
def never_run() -> None:
    """Stands for a flow; its runs are made, and nothing runs them."""


def states_after(client: SyncPrefectClient, *states: State[Any]) -> list[tuple[StateType, str | None]]:
    """Ask in each of these states, one after the other; return the states that follow."""
    made = client.create_flow_run(never_run)
    found = []
    with FlowRunApi(made.id, made.flow_id, "asked").open() as api:
        for state in states:
            client.set_flow_run_state(made.id, state, force=True)
            api.ask(QUESTION)
            after = client.read_flow_run(made.id).state
            assert after is not None
            found.append((after.type, after.name))
    return found


def test_whoever_comes_back_asks_again(client: SyncPrefectClient) -> None:
    assert states_after(client, Running(), Running()) == [(StateType.PAUSED, WAITING)] * 2


def test_a_flow_run_that_holds_a_slot_is_not_paused(client: SyncPrefectClient) -> None:
    """The pause would give the slot up, and Prefect ends a process whose slot is gone."""
    details = StateDetails(deployment_concurrency_lease_id=uuid4())
    assert states_after(client, Running(state_details=details)) == [(StateType.RUNNING, WAITING)]


def test_a_flow_run_that_does_not_run_is_left_alone(client: SyncPrefectClient) -> None:
    state: State[Any] = State(type=StateType.CANCELLING)
    assert states_after(client, state) == [(StateType.CANCELLING, "Cancelling")]


def test_the_choices_are_those_of_approve() -> None:
    proposed = ProposedLine(
        n=2, action="isolate_and_rebuild", isolate=("s0",), reason="lost: ![](//x)", until="2030-01-01T00:00:00Z",
        default="reject",
    )  # fmt: skip
    head = PhaseLine(run="r-1", job="j", phase="train", systems=("s0", "s1"))
    question = question_in("r-1", "2030_restartable", [head, proposed])
    assert question is not None
    assert {name: (answer.answer, answer.action, answer.isolate) for name, answer in question.choices.items()} == {
        "approve": ("approve", None, ()),
        "reject": ("reject", None, ()),
        "restart_in_place": ("change", "restart_in_place", ()),
        "rebuild": ("change", "rebuild", ()),
        "fail": ("change", "fail", ()),
        "isolate s0": ("change", None, ("s0",)),
        "isolate s1": ("change", None, ("s1",)),
    }  # fmt: skip
    assert question.answer_in({"answer": "isolate s1", "by": "Ada"}) == Answer(
        answer="change", by="Ada", isolate=("s1",)
    )
    assert question.answer_in({"answer": "perhaps"}) is None
