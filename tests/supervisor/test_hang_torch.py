"""One rank of three does not come to a real collective, in which the others wait."""

from __future__ import annotations

import pytest
from hanging import Make, Workers, processes_of
from torches import torch

__all__ = ["torch"]

CODE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
r, w = os.pipe()
def read_sample(): os.read(r, 1)
train()
if rank == 2: read_sample()
dist.all_reduce(torch.ones(1))
"""


@pytest.fixture
def workers_of_phase(torch: str) -> Workers:
    """Processes of an interpreter that has torch."""
    return processes_of(torch)


@pytest.mark.long  # to import torch takes seconds
def test_the_rank_that_does_not_come_is_blamed(make_hanging: Make) -> None:
    phase = make_hanging(CODE, workers=3, first_step_s=60.0)
    assert phase.run() == ["suspended: restart_in_place", "completed: complete"]
    (hang,) = phase.lines("hang")
    assert (hang["ranks"], hang["blamed"], hang["worker"]) == ([0, 1, 2], 2, 2)
    assert hang["where"].startswith("ranks 0 and 1 in all_reduce, rank 2 in read_sample (")
