"""How the tests of the decision core write a history: lines as in a replay file, one a decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from prefect_ft.decide import decide
from prefect_ft.journal.forms import incident_from_json
from prefect_ft.model import Decision, Entry, History, Policy

HOUR_S = 3600

Line = Mapping[str, Any]
Told = Callable[..., History]


@pytest.fixture
def told() -> Told:
    """Decide about each line in turn; a line without `t` comes an hour after the one before."""

    def tell(policy: Policy, *lines: Line) -> History:
        history: History = ()
        t: float = 0
        for line in lines:
            t = line.get("t", t + HOUR_S)
            incident = incident_from_json({**line, "t": t})
            decision = decide(policy, (*history, Entry(incident=incident)))
            history = (*history, Entry(incident=incident, decision=decision))
        return history

    return tell


@pytest.fixture
def decisions(told: Told) -> Callable[..., list[Decision]]:
    """Return the decisions about the lines."""
    return lambda policy, *lines: [entry.decision for entry in told(policy, *lines)]


@pytest.fixture
def verdicts(told: Told) -> Callable[..., list[str]]:
    """Return rule and action of each decision, as `rule: action`."""
    return lambda policy, *lines: [f"{e.decision.rule}: {e.decision.action}" for e in told(policy, *lines)]
