"""What was wanted of a flow run in Prefect while it had no process: its states tell whoever comes back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import takewhile

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext

DIED = "The orchestrator died."
"""The message of the state by which an automation has a worker start a flow run again."""

_logger = logging.getLogger(__name__)


def is_cancelled_meanwhile() -> bool:
    """Whether the flow run of this context was to be cancelled, and only came back because its process had died."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return False
    try:
        with get_client(sync_client=True) as client:
            states = client.read_flow_run_states(context.flow_run.id)
    except Exception:
        _logger.warning("Prefect does not tell whether this flow run is to be cancelled", exc_info=True)
        return False
    return cancelled_in(sorted(states, key=lambda state: state.timestamp))


def cancelled_in(states: Sequence[State]) -> bool:
    """Say it of a flow run that runs, by its states, the oldest first.

    A person who has it run again after it was cancelled wants it to run.
    """
    before = list(states)
    while before and before[-1].is_running():
        before.pop()
    since = list(takewhile(lambda state: not state.is_running(), reversed(before)))
    scheduled = next((state for state in since if state.is_scheduled()), None)
    is_by_itself = scheduled is not None and scheduled.message == DIED
    return is_by_itself and any(state.is_cancelling() or state.is_cancelled() for state in since)
