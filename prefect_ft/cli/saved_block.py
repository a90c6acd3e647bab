"""The blocks that a job names: Prefect is loaded for the first of them alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def saved_block(name: str) -> Mapping[str, Any]:
    """Return the content of a block that is saved in Prefect."""
    from prefect_ft.blocks import infrastructure_of_block  # costs a second

    return infrastructure_of_block(name)
