"""Which systems a run keeps cordoned that comes back, from what its phase's journal says."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("kubernetes")

from prefect_ft.backends.kubernetes.cordon import isolated_since


def decision(isolate: list[str], placement: list[str], rule: str = "node-lost") -> dict[str, Any]:
    return {"type": "decision", "rule": rule, "reason": "so", "isolate": isolate, "placement": placement}


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
def test_what_stays_cordoned(decisions: list[dict[str, Any]], expected: dict[str, str]) -> None:
    assert isolated_since(decisions) == expected
