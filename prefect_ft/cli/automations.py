"""`install-automations`: what Prefect's server does when the process of a train-flow dies."""

from __future__ import annotations

import json
from datetime import timedelta

from prefect.automations import Automation
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.settings import get_current_settings

from prefect_ft.cli import COMPLETED
from prefect_ft.errors import PrefectFTError
from prefect_ft.reporting import ENDED

FLOW = "train-flow"
WHEN_CRASHED = "prefect-ft: a crashed train-flow comes back"
WHEN_SILENT = "prefect-ft: a silent train-flow comes back"
MISSED_HEARTBEATS = 3

_OUR_FLOW = {"prefect.resource.role": "flow", "prefect.resource.name": FLOW}
_ENDS = ("Completed", "Failed", "Cancelled")


def install(heartbeat_s: int | None, *, as_json: bool) -> int:
    """Make both automations, or bring those that are there up to date; raises PrefectFTError."""
    if not get_current_settings().api.url:
        raise PrefectFTError("no Prefect API is configured: set PREFECT_API_URL to the server's address")
    heartbeat_s = heartbeat_s or get_current_settings().flows.heartbeat_frequency
    if not heartbeat_s:
        raise PrefectFTError(
            "flow runs send no heartbeats: set PREFECT_FLOWS_HEARTBEAT_FREQUENCY, e.g. to 30"
        )
    wanted = (_when_crashed(), _when_silent(heartbeat_s))
    try:
        for automation in wanted:
            _put(automation)
    except Exception as exc:
        raise PrefectFTError(f"Prefect's API cannot be used: {exc}") from exc
    names = [automation.name for automation in wanted]
    print(json.dumps({"automations": names}) if as_json else "\n".join(f"installed: {n}" for n in names))
    return COMPLETED


def _put(automation: Automation) -> None:
    """Make an automation in the place of the one of its name."""
    with get_client(sync_client=True) as client:
        for known in client.read_automations_by_name(automation.name):
            client.delete_automation(known.id)
    automation.create()


def _when_crashed() -> Automation:
    """A flow run that is reported as crashed is scheduled again, the same one."""
    return _comeback(
        WHEN_CRASHED,
        "Brings a crashed flow run back: the same one, which adopts what still runs.",
        EventTrigger(
            expect={"prefect.flow-run.Crashed"},
            match_related=_OUR_FLOW,
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(seconds=0),
        ),
    )


def _when_silent(heartbeat_s: int) -> Automation:
    """Where flow process and worker died together, or the report got lost, silence tells.

    A report of a crash does not end the wait: whoever came back has sent a heartbeat by then. One that
    died before its first heartbeat was seen to run.
    """
    return _comeback(
        WHEN_SILENT,
        "Brings a flow run back that sends no heartbeats and has not ended.",
        EventTrigger(
            after={"prefect.flow-run.Running", "prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", ENDED, *(f"prefect.flow-run.{name}" for name in _ENDS)},
            match={"prefect.resource.id": ["prefect.flow-run.*"]},
            match_related=_OUR_FLOW,
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=MISSED_HEARTBEATS * heartbeat_s),
        ),
    )


def _comeback(name: str, description: str, trigger: EventTrigger) -> Automation:
    action = ChangeFlowRunState(
        state=StateType.SCHEDULED, name="AwaitingRetry", message="The orchestrator died."
    )
    return Automation(name=name, description=description, trigger=trigger, actions=[action])
