"""What fails while an allocation begins costs time, and no run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kill_matrix_slurm import cell

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


@pytest.mark.parametrize("victim", ["slurmd", "batch", "batch-host"])
def test_a_run_survives_what_dies_as_its_nodes_begin(slurm_nodes: Any, tmp_path: Path, victim: str) -> None:
    cell(slurm_nodes, tmp_path / "run", victim, "beginning")
