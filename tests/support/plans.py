"""What a phase's plan has beside the ranks, for tests that are about the ranks: nobody reports, nothing is checked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect_ft.config import Faults
from prefect_ft.decide.hang import Limits
from prefect_ft.supervisor import SourcePlan, SuspensionPlan, SystemPlan, UpkeepPlan


def beside(
    directory: Path, systems: Sequence[str], faults: Faults | None = None, **commands: tuple[str, ...]
) -> dict[str, Any]:
    """Return the fields; `commands` are every system's `heal` and `check`."""
    return {
        "on_demand": None,
        "directory": directory,
        "suspension": SuspensionPlan(
            limits=Limits(hang_s=1800.0), response="restart", grace_s=0.0, sample_period_s=10.0
        ),
        "sources": SourcePlan(
            faults=faults or Faults(),
            place=directory / "faults.json",
            cwd=str(directory),
            env=dict(os.environ),
        ),
        "upkeep": UpkeepPlan(
            systems={name: SystemPlan(env=dict(os.environ), **commands) for name in systems},
            cwd=str(directory),
            heal_timeout_s=30.0,
            check_timeout_s=30.0,
        ),
    }
