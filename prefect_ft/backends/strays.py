"""Ends processes that outlived their agent on this machine; node servers do the same on theirs."""

from __future__ import annotations

from pathlib import Path

from prefect_ft.worker import strays
from prefect_ft.worker.strays import KILLED_TIMEOUT_S

__all__ = ["KILLED_TIMEOUT_S", "end_strays"]


def end_strays(home: Path) -> None:
    """SIGKILL the processes that outlived an agent, and agents that lost their parent."""
    strays.end_strays(str(home))
