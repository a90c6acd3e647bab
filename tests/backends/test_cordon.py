"""Which systems a run keeps cordoned that comes back, from what its phase's journal says."""

from __future__ import annotations

import pytest

from prefect_ft.backends.isolation import isolated_since
from prefect_ft.model import Counters, Decision


def decision(isolate: list[str], placement: list[str], rule: str = "node-lost") -> Decision:
    return Decision(
        n=1, rule=rule, action="rebuild", reason="so", placement=tuple(placement), counters=Counters(),
        isolate=tuple(isolate),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        pytest.param([], {}, id="nothing-was-decided"),
        pytest.param([decision([], ["s0", "s1"])], {}, id="nothing-was-isolated"),
        pytest.param([decision(["s1"], ["s0"])], {"s1": "node-lost: so"}, id="isolated"),
        pytest.param(
            [decision(["s1"], ["s0"]), decision(["s2"], ["s0"], "fault-critical")],
            {"s1": "node-lost: so", "s2": "fault-critical: so"},
            id="one-after-the-other",
        ),
        pytest.param([decision(["s1"], ["s0"]), decision([], ["s0", "s1"])], {}, id="used-again"),
    ],
)
def test_what_stays_cordoned(decisions: list[Decision], expected: dict[str, str]) -> None:
    found = isolated_since(decisions)
    assert {system: f"{each.rule}: {each.reason}" for system, each in found.items()} == expected
