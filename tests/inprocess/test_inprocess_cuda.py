"""On a GPU: ranks in a collective of NCCL come out of it, and a rank whose device is broken is left out."""

from __future__ import annotations

from pathlib import Path

import inprocess_ranks
import pytest
from torches import cuda, torch

__all__ = ["cuda", "torch"]

ONE_DEVICE = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
"""NCCL takes ranks on one device for a mistake, unless they say that they are of different hosts."""

BEGIN = """
import datetime
os.environ["NCCL_HOSTID"] = f"host-{ME}"
import torch, torch.distributed as dist

def begin(call):
    entered(call)
    dist.init_process_group(
        "nccl", store=call.torch_store(), rank=call.rank, world_size=call.world_size,
        timeout=datetime.timedelta(seconds=50), device_id=torch.device("cuda", 0),
    )
    total = torch.ones(1, device="cuda")
    dist.all_reduce(total)
    return total
"""
COLLECTIVE = """
def train(call: CallWrapper):
    total = begin(call)
    if call.iteration == 3:
        value = total.item()
        dist.destroy_process_group()
        return value
    if ME == 1:
        time.sleep(0.2)
        note("fail", iteration=call.iteration)
        raise RuntimeError("boom")
    dist.all_reduce(total)
    return total.item()

go(Wrapper(max_restarts_without_progress=None), train)
"""
BROKEN_DEVICE = """
from prefect_ft.inprocess.health_check import CudaHealthCheck

def train(call: CallWrapper):
    total = begin(call)
    if call.iteration == 0 and ME == 1:
        torch.ones(1, device="cuda")[torch.tensor([5], device="cuda")].item()
    if call.iteration == 0:
        dist.all_reduce(total)
    return total.item()

go(Wrapper(health_check=CudaHealthCheck()), train)
"""

pytestmark = pytest.mark.timeout(300)


def run(python: str, directory: Path, body: str) -> inprocess_ranks.Outcome:
    return inprocess_ranks.Ranks(directory, 2, BEGIN + body, python=python, env=ONE_DEVICE).wait(150)


def test_ranks_in_a_collective_of_nccl_come_out_when_another_fails(cuda: str, tmp_path: Path) -> None:
    outcome = run(cuda, tmp_path, COLLECTIVE)
    assert outcome.noted("end") == [[{"how": "returned", "value": 2.0}]] * 2, outcome.output
    assert len(outcome.restart_ms()) == 3
    assert max(outcome.restart_ms()) < 20_000  # the group's time-out is 50 s


def test_a_rank_whose_device_works_no_more_is_left_out(cuda: str, tmp_path: Path) -> None:
    outcome = run(cuda, tmp_path, BROKEN_DEVICE)
    assert outcome.noted("end")[0] == [{"how": "returned", "value": 1.0}], outcome.output
    assert outcome.ends()[1] not in (None, "returned"), outcome.output
    assert outcome.places(0)[-1][:3] == [1, 0, 1]
