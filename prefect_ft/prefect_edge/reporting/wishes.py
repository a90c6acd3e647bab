"""What was requested of a flow run in Prefect while it had no process, according to its states."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from prefect.client.schemas.objects import State

DIED = "The orchestrator died."
"""The message of the state by which an automation makes a worker restart a flow run."""


def cancelled_in(states: Sequence[State]) -> bool:
    """Return whether a running flow run with these states was to be cancelled and only came back after a crash.

    The oldest state is the first. If a person restarts it after its cancellation, it is to run.
    """
    before = list(states)
    while before and before[-1].is_running():
        before.pop()
    since = list(takewhile(lambda state: not state.is_running(), reversed(before)))
    scheduled = next((state for state in since if state.is_scheduled()), None)
    is_by_itself = scheduled is not None and scheduled.message == DIED
    return is_by_itself and any(state.is_cancelling() or state.is_cancelled() for state in since)
