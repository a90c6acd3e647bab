"""What outlived its agent on this machine, ended as agents' own servers do it on theirs."""

from __future__ import annotations

from pathlib import Path

from prefect_ft.worker import strays
from prefect_ft.worker.strays import KILLED_TIMEOUT_S

__all__ = ["KILLED_TIMEOUT_S", "end_strays"]


def end_strays(home: Path) -> None:
    """SIGKILL what outlived an agent, and an agent that is nobody's child any more."""
    strays.end_strays(str(home))
