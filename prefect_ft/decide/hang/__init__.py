"""Whether the ranks of an attempt hang: a fold over samples, and a pure judgement of what it knows.

Knows no clock. All ages are in *watched* time, which an agent counts while it samples: neither a machine that
was suspended nor one that was too busy to sample makes a rank look silent.
"""

from __future__ import annotations

from prefect_ft.decide.hang.facts import (
    ContainerSample,
    Hang,
    Limits,
    LogPattern,
    RankSample,
    Sample,
    Sign,
    Straggler,
)
from prefect_ft.decide.hang.gang import GangWatch
from prefect_ft.decide.hang.pace import Pace
from prefect_ft.decide.hang.stacks import RankStack, described, odd_rank

__all__ = [
    "ContainerSample",
    "GangWatch",
    "Hang",
    "Limits",
    "LogPattern",
    "Pace",
    "RankSample",
    "RankStack",
    "Sample",
    "Sign",
    "Straggler",
    "described",
    "odd_rank",
]
