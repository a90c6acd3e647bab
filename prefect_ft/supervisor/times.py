"""How long agents may take to answer before their workers count as gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ANSWER_TIMEOUT_S = 30.0
"""For an agent to come up, or to answer an order.

Longer than an agent takes to give up on processes that do not end, and on a look at checkpoints.
"""

START_RANK_S = 0.02
"""How much longer for each rank that it starts: ten times what that took of thousands."""

CHOOSE_TIMEOUT_S = 600.0
"""To look for the checkpoint to resume from: file servers come back after minutes."""


def start_timeout_s(orders: Mapping[int, Mapping[str, Any]]) -> float:
    """Return how long agents may take to start their ranks; `orders` are the fields of `start`, by worker."""
    return ANSWER_TIMEOUT_S + START_RANK_S * max(len(fields["ranks"]) for fields in orders.values())
