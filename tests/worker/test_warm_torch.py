"""Ranks with torch that are forked: what a training does, and what it gets, as when they are executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent_fixtures import MakeWorker
from torches import cuda, torch

from prefect_ft.supervisor.launch import USES_STORE

__all__ = ["cuda", "torch"]

pytestmark = pytest.mark.timeout(180)

TRAINING = """
import os, sys
import numpy
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

def work():
    print("own", torch.initial_seed(), numpy.random.random(), flush=True)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    for x, y in DataLoader(data, batch_size=16, num_workers=2):
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
    big = torch.ones(1000, 1000)
    print("trained", rank, loss.item(), (big @ big)[0, 0].item(), torch.get_num_threads(), flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    work()
"""
MODULES = ["torch", "torch.distributed", "torch.optim", "torch.utils.data", "numpy"]


@pytest.mark.long
@pytest.mark.parametrize(
    "more", [[], pytest.param(["torch._dynamo"], marks=pytest.mark.long)], ids=["few", "many"]
)
def test_a_training_is_the_same(torch: str, make_worker: MakeWorker, tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    rendezvous = {"by": "auto", "command": [torch, "train.py"], "cwd": "/", "env": {}}
    worker = make_worker(rendezvous=rendezvous, warm={"modules": [*MODULES, *more], "memory_mb": 4096})
    client = worker.attached()
    told: dict[str, Any] = client.expect_attached()
    seen, was_warm, own = [], [], []
    for attempt in (1, 2, 3):
        env = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(told["port"]),
            "WORLD_SIZE": "2",
            "GLOO_SOCKET_IFNAME": "lo",
            USES_STORE: "True",
        }
        first = len(client.heard)
        started = client.start(
            [torch, "train.py"], attempt, cwd=str(tmp_path), ranks=2, OMP_NUM_THREADS="1", **env
        )
        was_warm.append(started["warm"])
        for rank in (0, 1):
            event = client.expect("exited", rank=rank)
            assert event["code"] == 0, [each for each in client.heard[first:] if each["ev"] == "output"]
        told = client.stop(attempt)
        printed = "".join(
            event["text"] for event in client.heard[first:] if event["ev"] == "output"
        ).splitlines()
        seen.append(sorted(line for line in printed if line.startswith("trained")))
        own += [line.split() for line in printed if line.startswith("own")]
        if attempt == 1:
            parked = client.expect("warm", parked=2)
            assert parked["left_out"] == {}, parked
    assert was_warm == [False, True, True], client.heard
    assert len(seen[0]) == 2
    assert seen[1:] == seen[:1] * 2, client.heard
    assert [len(set(column)) for column in zip(*own, strict=True)] == [1, 6, 6], (
        "generators begin anew in each rank"
    )
    assert worker.log == ""


def test_forked_ranks_compute_on_a_device(cuda: str, make_worker: MakeWorker, tmp_path: Path) -> None:
    code = "import torch\nprint(torch.ones(100, 100, device='cuda').sum().item())"
    (tmp_path / "train.py").write_text(code)
    worker = make_worker(warm={"modules": ["torch", "torch._dynamo"], "memory_mb": 4096})
    client = worker.attached()
    was_warm = []
    for attempt in (1, 2, 3):
        first = len(client.heard)
        started = client.start([cuda, "train.py"], attempt, cwd=str(tmp_path), ranks=2)
        was_warm.append(started["warm"])
        for rank in (0, 1):
            assert client.expect("exited", rank=rank)["code"] == 0, client.heard[first:]
        client.stop(attempt)
        assert "".join(e["text"] for e in client.heard[first:] if e["ev"] == "output") == "10000.0\n" * 2
        if attempt == 1:
            assert client.expect("warm", parked=2)["left_out"] == {}
    assert was_warm == [False, True, True]
