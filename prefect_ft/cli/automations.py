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

FLOW = "train-flow"
COMES_BACK = "prefect-ft: a crashed train-flow comes back"
NO_HEARTBEAT = "prefect-ft: a train-flow without heartbeats has crashed"
MISSED_HEARTBEATS = 3


def install(heartbeat_s: int, *, as_json: bool) -> int:
    """Make both automations, or bring those that are there up to date; raises PrefectFTError."""
    if not get_current_settings().api.url:
        raise PrefectFTError("no Prefect API is configured: set PREFECT_API_URL to the server's address")
    wanted = (_comes_back(), _no_heartbeat(heartbeat_s))
    try:
        for automation in wanted:
            _put(automation)
    except Exception as exc:
        raise PrefectFTError(f"Prefect's API cannot be used: {exc}") from exc
    names = [automation.name for automation in wanted]
    print(json.dumps({"automations": names}) if as_json else "\n".join(f"installed: {n}" for n in names))  # noqa: T201
    return COMPLETED


def _put(automation: Automation) -> None:
    """Make an automation in the place of the one of its name."""
    with get_client(sync_client=True) as client:
        for known in client.read_automations_by_name(automation.name):
            client.delete_automation(known.id)
    automation.create()


def _comes_back() -> Automation:
    """A flow run that crashed is scheduled again, the same one; how often, its own journal limits."""
    return Automation(
        name=COMES_BACK,
        description="Brings the same flow run back; it adopts what still runs.",
        trigger=EventTrigger(
            expect={"prefect.flow-run.Crashed"},
            match_related=_of_our_flow(),
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(seconds=0),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.SCHEDULED, name="AwaitingRetry", message="The orchestrator died."
            )
        ],
    )


def _no_heartbeat(heartbeat_s: int) -> Automation:
    """Where flow process and worker died together nobody tells the server; then silence does."""
    ends = {
        f"prefect.flow-run.{name}"
        for name in ("Completed", "Failed", "Crashed", "Cancelled", "AwaitingRetry")
    }
    return Automation(
        name=NO_HEARTBEAT,
        description="Marks a flow run that went silent as crashed.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *ends},
            match={"prefect.resource.id": ["prefect.flow-run.*"]},
            match_related=_of_our_flow(),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=MISSED_HEARTBEATS * heartbeat_s),
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message="No heartbeat came any more.")],
    )


def _of_our_flow() -> dict[str, str]:
    return {"prefect.resource.role": "flow", "prefect.resource.name": FLOW}
