"""On a GPU: ranks in a collective of NCCL come out of it, and who is lost or has a broken device is left out."""

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
def train(call: CallWrapper):
    total = begin(call)
    if call.iteration == 0 and ME == 1:
        torch.ones(1, device="cuda")[torch.tensor([5], device="cuda")].item()
    if call.iteration == 0:
        dist.all_reduce(total)
    return total.item()

go(Wrapper(), train)
"""
LOST_PEER = """
def train(call: CallWrapper):
    groups = [dist.new_group() for _ in range(GROUPS)] if begin(call) is not None else []
    total = torch.ones(1, device="cuda")
    for group in groups:
        dist.all_reduce(total, group=group)
    total.item()
    if call.iteration == 0 and ME == 1:
        note("fail", iteration=call.iteration)
        os.kill(os.getpid(), signal.SIGKILL)
    total = torch.ones(1, device="cuda")
    dist.all_reduce(total)
    value = total.item()
    if call.iteration > 0:
        dist.destroy_process_group()
    return value

go(Wrapper(), train)
"""
BOTH_BACKENDS = """
def train(call: CallWrapper):
    entered(call)
    torch.cuda.set_device(0)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl", store=call.torch_store(), rank=call.rank, world_size=call.world_size,
        timeout=datetime.timedelta(seconds=50),
    )
    on_cpu, on_gpu = torch.ones(1), torch.ones(1, device="cuda")
    dist.all_reduce(on_cpu)
    dist.all_reduce(on_gpu)
    on_gpu.item()
    if call.iteration == 0 and ME == 1:
        note("fail", iteration=call.iteration)
        END
    if call.iteration == 0:
        dist.all_reduce(on_WHERE)
        on_WHERE.item()
    value = on_cpu.item() + on_gpu.item()
    dist.destroy_process_group()
    return value

go(Wrapper(), train)
"""
FURTHER_GROUPS = """
def train(call: CallWrapper):
    begin(call)
    groups = [dist.new_group() for _ in range(4)]
    total = torch.ones(1, device="cuda")
    for group in groups:
        dist.all_reduce(total, group=group)
    total.item()
    if call.iteration == 0 and ME == 1:
        note("fail", iteration=call.iteration)
        raise RuntimeError("boom")
    if call.iteration == 0:
        dist.all_reduce(total, group=groups[1])  # of which the others wait for each other's memory
    value = total.item()
    dist.destroy_process_group()
    return value

go(Wrapper(), train)
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


@pytest.mark.parametrize("groups", [0, 3])
def test_a_rank_whose_peer_was_killed_goes_on_without_it(cuda: str, tmp_path: Path, groups: int) -> None:
    outcome = run(cuda, tmp_path, f"GROUPS = {groups}\n{LOST_PEER}")
    assert outcome.noted("end")[0] == [{"how": "returned", "value": 1.0}], outcome.output
    assert outcome.codes == [0, -9], outcome.output
    assert max(outcome.restart_ms()) < 20_000  # torch's watchdog sleeps a minute, then ends the process


@pytest.mark.parametrize("where", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("end", "left"), [('raise RuntimeError("boom")', 2), ("os.kill(os.getpid(), signal.SIGKILL)", 1)]
)
def test_a_group_of_gloo_and_nccl_is_aborted(
    cuda: str, tmp_path: Path, where: str, end: str, left: int
) -> None:
    outcome = run(cuda, tmp_path, BOTH_BACKENDS.replace("WHERE", where).replace("END", end))
    assert outcome.noted("end")[:left] == [[{"how": "returned", "value": 2.0 * left}]] * left, outcome.output
    assert max(outcome.restart_ms()) < 20_000


def test_what_launchers_give_every_rank_ends_none_whose_peer_was_killed(cuda: str, tmp_path: Path) -> None:
    by_launcher = {**ONE_DEVICE, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    body = f"GROUPS = 0\n{LOST_PEER}"
    outcome = inprocess_ranks.Ranks(tmp_path, 2, BEGIN + body, python=cuda, env=by_launcher).wait(150)
    assert outcome.noted("end")[0] == [{"how": "returned", "value": 1.0}], outcome.output


def test_groups_that_wait_for_each_other_are_aborted(cuda: str, tmp_path: Path) -> None:
    outcome = run(cuda, tmp_path, FURTHER_GROUPS)
    assert outcome.noted("end") == [[{"how": "returned", "value": 16.0}]] * 2, outcome.output
    assert max(outcome.restart_ms()) < 20_000
