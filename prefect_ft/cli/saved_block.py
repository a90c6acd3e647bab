"""Loads the blocks that a job names; imports Prefect only if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def saved_block(name: str) -> Mapping[str, Any]:
    """Return the content of a block saved in Prefect."""
    from prefect_ft.blocks import infrastructure_of_block  # takes a second

    return infrastructure_of_block(name)
