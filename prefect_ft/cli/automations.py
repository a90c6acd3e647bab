"""The Prefect automations that restart a train-flow whose process died; implements `install-automations`."""

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
"""By default Prefect's server marks a flow run that does not end as cancelled after 300 s."""

SILENT = (
    "No heartbeats: the orchestrator died. A worker starts a deployed flow run again; for any other, run "
    "`prefect-ft resume MODEL_DIR` on its machine. The first lines of its log name the directory."
)
"""The state message of a flow run that may need a person to resume it; the same for all flow runs."""

_OUR_FLOW = {"prefect.resource.role": "flow", "prefect.resource.name": FLOW}
_DEPLOYED = {"prefect.resource.role": "deployment"}
_ENDS = ("Completed", "Failed", "Cancelled")


def _back(*, force: bool = False) -> ChangeFlowRunState:
    """Return the action that makes a worker start the same flow run again."""
    return ChangeFlowRunState(state=StateType.SCHEDULED, name="AwaitingRetry", message=DIED, force=force)


def install(heartbeat_s: int | None, *, as_json: bool) -> int:
    """Create or update the automations; raises PrefectFTError."""
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
        raise PrefectFTError(f"Prefect's API failed: {exc}") from exc
    if as_json:
        print(plaintext.as_json({"automations": [name for name, _ in changes]}))
    for name, is_new in () if as_json else changes:
        print(f"{'installed' if is_new else 'unchanged'}: {name}")
    return COMPLETED


def _put(automation: Automation) -> bool:
    """Replace the automation of the same name; return whether anything changed.

    An identical one is kept: the server would forget which flow runs a new one waits for.
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
    """Return the automation that reschedules a flow run reported as crashed.

    Only a deployed flow run: no worker ever starts any other.
    """
    return Automation(
        name=WHEN_CRASHED,
        description="Restarts a crashed flow run: the same one, which adopts the ranks that still run.",
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
    """Return the automation that marks a silent flow run as crashed, which triggers the other automation.

    It covers a flow process that died together with its worker, and a lost crash report. A crash report does not
    end the wait: a restarted process sends heartbeats. The state Running covers a death before the first heartbeat.
    """
    return Automation(
        name=WHEN_SILENT,
        description="Marks a flow run as crashed if it sends no heartbeats and has not ended.",
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
    """Return the automation that restarts a flow run cancelled while its process is dead: the new process ends the run.

    A live process sends heartbeats until it has ended.
    """
    return Automation(
        name=WHEN_CANCELLED,
        description="Restarts a flow run that is being cancelled and has no process, to end its ranks.",
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
        actions=[_back(force=True)],  # Prefect otherwise allows only Cancelling -> Cancelled
    )
