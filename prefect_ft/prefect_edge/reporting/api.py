"""Prefect's API as the reporter uses it: each call may take long or raise, and may be repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any
from uuid import UUID, uuid4

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate, LogCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    LogFilter,
    LogFilterFlowRunId,
    LogFilterTimestamp,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import State, StateDetails, StateType
from prefect.client.schemas.sorting import LogSort
from prefect.events import Event
from prefect.exceptions import PrefectHTTPStatusError
from prefect.input.run_input import keyset_from_base_key
from prefect.states import Crashed

from prefect_ft.files import parse_json
from prefect_ft.model import Answer
from prefect_ft.prefect_edge.reporting.question import WAITING, Question
from prefect_ft.prefect_edge.reporting.records import EventNote
from prefect_ft.prefect_edge.reporting.wishes import cancelled_in

LOGGER = "prefect.flow_runs"
"""The name under which Prefect shows a flow run's lines."""


class FlowRunApi:
    """One flow run. Not thread-safe."""

    def __init__(self, flow_run_id: UUID, flow_id: UUID | None, flow: str) -> None:
        self._id = flow_run_id
        self._flow_id, self._flow = flow_id, flow
        self._artifacts: dict[str, UUID] = {}

    @contextmanager
    def open(self) -> Iterator[OpenApi]:
        """Connect; after an error the caller opens it anew."""
        with get_client(sync_client=True) as client:
            yield OpenApi(client, self._id, self._related(), self._artifacts)

    def _related(self) -> list[dict[str, str]]:
        run = {"prefect.resource.id": f"prefect.flow-run.{self._id}", "prefect.resource.role": "flow-run"}
        flow = {
            "prefect.resource.id": f"prefect.flow.{self._flow_id}",
            "prefect.resource.role": "flow",
            "prefect.resource.name": self._flow,
        }
        return [run, flow] if self._flow_id is not None else [run]


class OpenApi:
    """A connection."""

    def __init__(
        self,
        client: SyncPrefectClient,
        flow_run_id: UUID,
        related: list[dict[str, str]],
        artifacts: dict[str, UUID],
    ) -> None:
        self._client, self._id = client, flow_run_id
        self._related = related
        self._artifacts = artifacts

    def is_cancelled(self) -> bool:
        """Whether the flow run is to be cancelled, or was."""
        state = self._client.read_flow_run(self._id).state
        return state is not None and (state.is_cancelling() or state.is_cancelled())

    def was_cancelled(self) -> bool:
        """Whether the flow run was to be cancelled while it had no process."""
        states = self._client.read_flow_run_states(self._id)
        return cancelled_in(sorted(states, key=lambda state: state.timestamp))

    def name_state(self, name: str, message: str | None) -> None:
        """Rename the flow run's running state.

        Without force, so that a flow run that is to be cancelled stays so.
        """
        state: State[Any] = State(type=StateType.RUNNING, name=name, message=message)
        self._client.set_flow_run_state(self._id, state)

    def ask(self, question: Question) -> None:
        """Pause the flow run until the question's form is filled in; its process continues.

        Where it holds a slot of a concurrency limit, only the state's name changes: a pause would release the slot,
        and Prefect ends a process without its slot. A pause has no timeout: Prefect would fail the flow run.
        """
        state = self._client.read_flow_run(self._id).state
        if state is None or not state.is_running():
            return
        if state.state_details.deployment_concurrency_lease_id is not None:
            self.name_state(WAITING, question.message)
            return
        keyset = keyset_from_base_key(question.key)
        self._put_input(keyset["schema"], question.schema)
        self._put_input(keyset["description"], question.description)
        # A second pause of the same key is refused, and an orchestrator that comes back pauses again.
        details = StateDetails(pause_key=str(uuid4()), run_input_keyset={**keyset})
        paused: State[Any] = State(
            type=StateType.PAUSED, name=WAITING, message=question.message, state_details=details
        )
        self._client.set_flow_run_state(self._id, paused)

    def _put_input(self, key: str, value: Any) -> None:
        try:
            self._client.create_flow_run_input(self._id, key, json.dumps(value))
        except PrefectHTTPStatusError as exc:
            if exc.response.status_code != HTTPStatus.CONFLICT:  # else an earlier process has created it
                raise

    def answer_to(self, question: Question) -> Answer | None:
        """Return the answer in the question's form; None: it is not filled in."""
        try:
            form = self._client.read_flow_run_input(self._id, keyset_from_base_key(question.key)["response"])
        except PrefectHTTPStatusError as exc:
            if exc.response.status_code == HTTPStatus.NOT_FOUND:
                return None
            raise
        return question.answer_in(parse_json(form))

    def log(self, level: int, message: str, utc: str) -> None:
        """Write a line into the flow run's log."""
        line = LogCreate(
            name=LOGGER, level=level, message=message, timestamp=_moment(utc), flow_run_id=self._id
        )
        self._client.create_logs([line])

    def has_log(self, message: str, utc: str) -> bool:
        """Whether a line whose arrival is unknown has arrived."""
        moment = _moment(utc)
        near = LogFilterTimestamp(
            after_=moment - timedelta(milliseconds=1), before_=moment + timedelta(milliseconds=1)
        )
        asked = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[self._id]), timestamp=near)
        found = self._client.read_logs(asked, limit=200, sort=LogSort.TIMESTAMP_ASC)
        return any(log.message == message for log in found)

    def event(self, note: EventNote) -> None:
        """Send an event; one with a known id changes nothing."""
        place = note.place
        systems = [
            {"prefect.resource.id": f"prefect-ft.system.{name}", "prefect.resource.role": "system"}
            for name in note.systems
        ]
        event = Event.model_validate(
            {
                "id": note.id,
                "event": note.name,
                "occurred": note.utc,
                "resource": {
                    "prefect.resource.id": f"prefect-ft.run.{place.run}",
                    "prefect.resource.name": place.phase,
                },
                "related": [*self._related, *systems],
                "payload": dict(note.payload),
            }
        )
        self._client.request("POST", "/events", json=[event.model_dump(mode="json")])

    def put_artifact(self, key: str, kind: str, data: Any, description: str) -> None:
        """Create an artifact of the flow run, or update the existing one."""
        known = self._artifacts.get(key) or self._find_artifact(key)
        if known is not None:
            self._artifacts[key] = known
            self._client.update_artifact(known, ArtifactUpdate(data=data, description=description))
            return
        made = self._client.create_artifact(
            ArtifactCreate(key=key, type=kind, data=data, description=description, flow_run_id=self._id)
        )
        self._artifacts[key] = made.id

    def _find_artifact(self, key: str) -> UUID | None:
        """Find an artifact that an earlier process created, or whose creation was not confirmed."""
        asked = {"artifacts": {"flow_run_id": {"any_": [str(self._id)]}, "key": {"any_": [key]}}, "limit": 1}
        found = self._client.request("POST", "/artifacts/filter", json=asked).json()
        return UUID(found[0]["id"]) if found else None

    def end_orphaned_tasks(self, began: datetime) -> None:
        """Mark the task runs of an earlier process, which nothing else will end, as crashed."""
        flow_run = FlowRunFilter(id=FlowRunFilterId(any_=[self._id]))
        state_type = TaskRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING])
        running = TaskRunFilter(state=TaskRunFilterState(type=state_type))
        for task_run in self._client.read_task_runs(flow_run_filter=flow_run, task_run_filter=running):
            if task_run.start_time is not None and task_run.start_time < began:
                state: State[Any] = Crashed(message="The orchestrator died; what it watched went on.")
                self._client.set_task_run_state(task_run.id, state, force=True)


def _moment(utc: str) -> datetime:
    return datetime.fromisoformat(utc.replace("Z", "+00:00"))
