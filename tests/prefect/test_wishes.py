"""Whether a flow run that came back was to be cancelled, by its states."""

from __future__ import annotations

import pytest
from prefect.client.schemas.objects import State
from prefect.states import AwaitingRetry, Cancelled, Cancelling, Crashed, Pending, Running

from prefect_ft.prefect_edge.reporting.wishes import DIED, cancelled_in

BEGUN = [Pending(), Running()]
BY_ITSELF = [AwaitingRetry(message=DIED), Pending(), Running(), Running(name="Restarting in place")]
BY_HAND = [AwaitingRetry(message="Retry from the UI"), Pending(), Running()]

HISTORIES = {
    "begun": (BEGUN, False),
    "came-back": ([*BEGUN, Crashed(), *BY_ITSELF], False),
    "cancelled-while-it-ran": ([*BEGUN, Cancelling(), *BY_ITSELF], True),
    "cancelled-before-the-crash-was-known": ([*BEGUN, Cancelling(), Crashed(), *BY_ITSELF], True),
    "cancelled-while-it-waited": ([*BEGUN, Crashed(), AwaitingRetry(message=DIED), Cancelling(), *BY_ITSELF], True),
    "given-up-by-the-server": ([*BEGUN, Cancelling(), Cancelled(), *BY_ITSELF], True),
    "run-again-by-a-person": ([*BEGUN, Cancelling(), Cancelled(), *BY_HAND], False),
    "came-back-after-a-person-had-it-run": (
        [*BEGUN, Cancelling(), Cancelled(), *BY_HAND, Crashed(), *BY_ITSELF], False,
    ),
    "unknown": ([], False),
}  # fmt: skip


@pytest.mark.parametrize(("states", "expected"), HISTORIES.values(), ids=HISTORIES)
def test_a_wish_is_found_among_the_states(states: list[State], expected: bool) -> None:
    assert cancelled_in(states) is expected
