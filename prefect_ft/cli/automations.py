"""The automations of Prefect's server for when the process of a train-flow dies: the work of `install-automations`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from prefect.automations import Automation
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.settings import get_current_settings

from prefect_ft import plaintext
from prefect_ft.cli.exits import COMPLETED
from prefect_ft.errors import PrefectFTError
from prefect_ft.prefect_edge.reporting import DIED, ENDED

FLOW = "train-flow"
WHEN_CRASHED = "prefect-ft: a crashed train-flow comes back"
WHEN_SILENT = "prefect-ft: a silent train-flow comes back"
WHEN_CANCELLED = "prefect-ft: a cancelled train-flow without a process comes back to end"
MISSED_HEARTBEATS = 3

MAX_CANCELLING_S = 240
"""After 300 s, if not set otherwise, Prefect's server calls a flow run cancelled that does not end."""

SILENT = (
    "No heartbeats: the orchestrator died. A worker starts a deployed flow run again; for any other, run "
    "`prefect-ft resume MODEL_DIR` on its machine. The first lines of its log name the directory."
)
"""What people read of a flow run that nobody brings back by itself: this, its state's message, is the same for all."""

_OUR_FLOW = {"prefect.resource.role": "flow", "prefect.resource.name": FLOW}
_DEPLOYED = {"prefect.resource.role": "deployment"}
_ENDS = ("Completed", "Failed", "Cancelled")


def _back(*, force: bool = False) -> ChangeFlowRunState:
    """Return the action that has a worker start the same flow run again."""
    return ChangeFlowRunState(state=StateType.SCHEDULED, name="AwaitingRetry", message=DIED, force=force)


def install(heartbeat_s: int | None, *, as_json: bool) -> int:
    """Make the automations, or bring those that are there up to date; raises PrefectFTError."""
    if not get_current_settings().api.url:
        raise PrefectFTError("no Prefect API is configured: set PREFECT_API_URL to the server's address")
    heartbeat_s = heartbeat_s or get_current_settings().flows.heartbeat_frequency
    if not heartbeat_s:
        raise PrefectFTError(
            "flow runs send no heartbeats: set PREFECT_FLOWS_HEARTBEAT_FREQUENCY, e.g. to 30"
        )
    wanted = (_when_crashed(), _when_silent(heartbeat_s), _when_cancelled(heartbeat_s))
    try:
        changes = [(automation.name, _put(automation)) for automation in wanted]
    except Exception as exc:
        raise PrefectFTError(f"Prefect's API cannot be used: {exc}") from exc
    if as_json:
        print(plaintext.as_json({"automations": [name for name, _ in changes]}))
    for name, is_new in () if as_json else changes:
        print(f"{'installed' if is_new else 'unchanged'}: {name}")
    return COMPLETED


def _put(automation: Automation) -> bool:
    """Make an automation in the place of the one of its name; return whether there was anything to do.

    One that is the same stays: with a new one the server would forget for which flow runs it waits.
    """
    with get_client(sync_client=True) as client:
        known = client.read_automations_by_name(automation.name)
        if len(known) == 1 and _content(known[0]) == _content(automation):
            return False
        for each in known:
            client.delete_automation(each.id)
    automation.create()
    return True


def _content(automation: AutomationCore) -> dict[str, Any]:
    return automation.model_dump(include={"description", "enabled", "trigger", "actions"})


def _when_crashed() -> Automation:
    """A flow run that is reported as crashed is scheduled again, the same one.

    Only where it has a deployment: no worker ever starts another one.
    """
    return Automation(
        name=WHEN_CRASHED,
        description="Brings a crashed flow run back: the same one, which adopts what still runs.",
        trigger=EventTrigger(
            expect={"prefect.flow-run.Crashed"},
            match_related=[_OUR_FLOW, _DEPLOYED],
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(seconds=0),
        ),
        actions=[_back()],
    )


def _when_silent(heartbeat_s: int) -> Automation:
    """Where flow process and worker died together, or the report got lost, silence tells.

    It is a crash then, and the other automation does the rest. A report of a crash does not end the wait: whoever
    came back has sent a heartbeat by then. One that died before its first heartbeat was seen to run.
    """
    return Automation(
        name=WHEN_SILENT,
        description="Marks a flow run as crashed that sends no heartbeats and has not ended.",
        trigger=EventTrigger(
            after={"prefect.flow-run.Running", "prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", ENDED, *(f"prefect.flow-run.{name}" for name in _ENDS)},
            match={"prefect.resource.id": ["prefect.flow-run.*"]},
            match_related=_OUR_FLOW,
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=MISSED_HEARTBEATS * heartbeat_s),
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message=SILENT)],
    )


def _when_cancelled(heartbeat_s: int) -> Automation:
    """A cancel reaches nobody where the process is dead: whoever comes back finds it, and ends the run.

    A process that lives sends heartbeats until it has ended.
    """
    return Automation(
        name=WHEN_CANCELLED,
        description="Brings a flow run back that is to be cancelled and has no process, to end its ranks.",
        trigger=EventTrigger(
            after={"prefect.flow-run.Cancelling"},
            expect={"prefect.flow-run.heartbeat", ENDED, *(f"prefect.flow-run.{name}" for name in _ENDS)},
            match={"prefect.resource.id": ["prefect.flow-run.*"]},
            match_related=[_OUR_FLOW, _DEPLOYED],
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=min(MISSED_HEARTBEATS * heartbeat_s, MAX_CANCELLING_S)),
        ),
        actions=[_back(force=True)],  # from Cancelling Prefect lets a flow run become Cancelled alone
    )
