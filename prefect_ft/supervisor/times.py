"""How long agents may take to answer before their workers count as gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ANSWER_TIMEOUT_S = 30.0
"""For an agent to start, or to answer an order.

Longer than an agent takes to give up on processes that do not end, and on a scan of checkpoints.
"""

START_RANK_S = 0.02
"""Additional time for each rank that it starts: ten times what was measured with thousands."""

CHOOSE_TIMEOUT_S = 600.0
"""To find the checkpoint to resume from: file servers recover within minutes."""


def start_timeout_s(orders: Mapping[int, Mapping[str, Any]]) -> float:
    """Return how long agents may take to start their ranks; `orders` are the fields of `start`, by worker."""
    return ANSWER_TIMEOUT_S + START_RANK_S * max(len(fields["ranks"]) for fields in orders.values())
