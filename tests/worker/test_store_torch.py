"""The rendezvous store and the clients of the real torch; `torch` is an interpreter that has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_fixtures import LivingWorker, MakeWorker
from agents import AgentClient
from torches import torch

from prefect_ft.supervisor.launch import USES_STORE

__all__ = ["torch"]

pytestmark = pytest.mark.timeout(180)

CLIENT = """
import os
from datetime import timedelta
import torch.distributed as dist

def store(seconds=20):
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(*place, 1, False, timedelta(seconds=seconds))
"""

GROUPS = """
import os
from datetime import timedelta
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
assert size == int(os.environ["WORLD_SIZE"])
total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
assert total.item() == size * (size + 1) / 2, total
dist.barrier()
dist.monitored_barrier(timeout=timedelta(seconds=30))
odd = dist.new_group(ranks=list(range(1, size, 2)))
even = dist.new_group(ranks=list(range(0, size, 2)))
mine = odd if rank % 2 else even
part = torch.tensor([1.0])
dist.all_reduce(part, group=mine)
assert part.item() == dist.get_world_size(mine)
everything = [None] * size
dist.all_gather_object(everything, {"rank": rank})
assert everything == [{"rank": each} for each in range(size)]
dist.destroy_process_group()
print("done", rank)
"""


def rendezvous(python: str, by: str = "auto") -> dict[str, object]:
    return {"by": by, "command": [python, "-c", ""], "cwd": "/", "env": {}}


def start(
    client: AgentClient, told: dict[str, object], python: str, code: str, attempt: int, ranks: int
) -> None:
    """Start ranks as a supervisor does that was `told` this by `attached` or `stopped`."""
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(told["port"]), "WORLD_SIZE": str(ranks)}
    env |= {USES_STORE: "True"} if told["store"] else {}
    started = client.start([python, "-c", code], attempt, ranks=ranks, OMP_NUM_THREADS="1", **env)
    assert started["ev"] == "started"


def expect_success(client: AgentClient, ranks: int) -> None:
    for rank in range(ranks):
        event = client.expect("exited", rank=rank)
        assert event["code"] == 0, client.printed(rank).decode()


@pytest.fixture
def meeting(torch: str, make_worker: MakeWorker) -> LivingWorker:
    """A worker 0 whose ranks are given this torch."""
    return make_worker(rendezvous=rendezvous(torch))


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_groups_meet_and_work_in_attempt_after_attempt(meeting: LivingWorker, torch: str, ranks: int) -> None:
    client = meeting.attached()
    told = client.expect_attached()
    ports = [told["port"]]
    for attempt in (1, 2):
        assert told["store"] is True
        start(client, told, torch, GROUPS, attempt, ranks)
        expect_success(client, ranks)
        assert client.expect("came_up", what="rendezvous")["token"] == client.token(attempt)
        told = client.stop(attempt)
        ports.append(told["port"])
    assert len(set(ports)) == 3, "each attempt has a place of its own"
    assert meeting.log == ""


@pytest.mark.long
def test_a_rank_that_dies_in_the_middle_takes_the_store_along_for_nobody(
    meeting: LivingWorker, torch: str, tmp_path: Path
) -> None:
    code = (
        CLIENT
        + """
rank = int(os.environ["RANK"])
if rank == 0:
    store().set("rank 0", "was here")
    os.kill(os.getpid(), 9)
mine = store()
assert mine.get("rank 0") == b"was here"
mine.set("later", "1")
assert mine.wait(["later", "rank 0"]) is None
"""
    )
    client = meeting.attached()
    start(client, client.expect_attached(), torch, code, 1, 2)
    assert client.expect("exited", rank=0)["signal"] == 9
    assert client.expect("exited", rank=1)["code"] == 0, client.printed(1).decode()


def test_every_call_of_the_client_is_served(meeting: LivingWorker, torch: str) -> None:
    code = (
        CLIENT
        + """
from threading import Thread
a, b = store(), store()
a.set("k", "v")
assert (b.get("k"), b.add("n", 5), a.add("n", -2)) == (b"v", 5, 3)
assert (a.check(["k"]), a.check(["k", "no"]), a.num_keys() >= 2) == (True, False, True)
assert [a.compare_set("c", "", "1"), a.compare_set("c", "2", "3"), a.compare_set("c", "1", "2")] == [b"1", b"1", b"2"]
a.append("p", "ab")
a.append("p", "cd")
a.multi_set(["m1", "m2"], ["1", "22"])
assert (b.get("p"), b.multi_get(["m2", "m1"])) == (b"abcd", [b"22", b"1"])
assert (a.delete_key("k"), a.delete_key("k")) == (True, False)
if hasattr(a, "queue_push"):
    a.queue_push("q", "1")
    assert (b.queue_len("q"), b.queue_pop("q"), b.queue_len("q")) == (1, b"1", 0)
if hasattr(a, "list_keys"):
    assert {"c", "m1", "m2", "n", "p"} <= set(a.list_keys())
if hasattr(a, "barrier"):
    other = Thread(target=lambda: b.barrier("bar", 2))
    other.start()
    a.barrier("bar", 2)
    other.join()
a.clone().set("of a clone", "1")
prefixed = dist.PrefixStore("before", b)
prefixed.set("x", "y")
assert a.get("before/x") == b"y"
try:
    a.wait(["never"], timedelta(milliseconds=50))
    raise SystemExit("nobody set it")
except dist.DistStoreError:
    assert a.get("n") == b"3", "the connection goes on after a wait that was cancelled"
b.set("big", "x" * 1_000_000)
assert len(a.get("big")) == 1_000_000
"""
    )
    client = meeting.attached()
    start(client, client.expect_attached(), torch, code, 1, 1)
    expect_success(client, 1)


@pytest.mark.long
@pytest.mark.parametrize("by", ["ranks", "auto"])
def test_without_a_store_rank_0_listens(torch: str, make_worker: MakeWorker, by: str) -> None:
    """That is where the job says so, and where the command is no Python that is known."""
    command = {"by": by, "command": ["sh", "train.sh"], "cwd": "/", "env": {}}
    client = make_worker(rendezvous=command).attached()
    assert client.expect_attached()["store"] is False
    start(client, client.expect_attached(), torch, GROUPS, 1, 2)
    expect_success(client, 2)
