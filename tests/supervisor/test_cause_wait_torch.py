"""A rank leaves a real process group, and is slow to report the exception for which it does: its peer fails first."""

from __future__ import annotations

import pytest
from hanging import Make, Workers, processes_of
from torches import torch

__all__ = ["torch"]

CODE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
train()
if rank == 0: open("pid", "w").write(str(os.getpid())); os.rename("pid", "first")
try:
    dist.all_reduce(torch.ones(1))
    if rank == 1: raise KeyError("label_17")
    dist.all_reduce(torch.ones(1))
except KeyError:
    dist.destroy_process_group()
    first = "/proc/" + open("first").read()
    while os.path.exists(first): time.sleep(0.01)
    raise
"""


@pytest.fixture
def workers_of_phase(torch: str) -> Workers:
    """Processes of an interpreter that has torch."""
    return processes_of(torch)


@pytest.mark.long  # to import torch takes seconds
def test_its_exception_is_the_cause(make_hanging: Make) -> None:
    phase = make_hanging(CODE, workers=2, first_step_s=60.0)
    assert phase.run() == ["confirm-once: restart_in_place", "completed: complete"]
    incident = phase.journal.history()[0].incident
    assert incident.evidence is not None
    assert (incident.evidence.text, incident.worker) == ("KeyError: 'label_17'", 1)
