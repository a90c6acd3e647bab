"""Process groups of real torch: taken down on all ranks, set up anew, and nobody waits for a time-out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import inprocess_ranks
import pytest
from ports import free_port
from torches import torch_python

import prefect_ft
from tests.conftest import need

PYTHON = torch_python() or sys.executable

TRAIN = """
import datetime, torch, torch.distributed as dist
torch.set_num_threads(1)

def train(call: CallWrapper):
    entered(call)
    dist.init_process_group(
        "gloo", store=call.torch_store(), rank=call.rank, world_size=call.world_size,
        timeout=datetime.timedelta(seconds=50),
    )
    total = torch.ones(1)
    dist.all_reduce(total)
    if call.iteration == LAST:
        dist.destroy_process_group()
        return total.item()
    if ME == 1:
        time.sleep(0.1)
        note("fail", iteration=call.iteration)
        FAULT
    while True:
        dist.all_reduce(total)
        call.ping()

go(Wrapper(max_restarts_without_progress=None, OPTIONS), train)
"""


@pytest.fixture(scope="module", autouse=True)
def _torch() -> None:
    found = subprocess.run(
        [PYTHON, "-c", "import torch.distributed"], capture_output=True, text=True, check=False
    )
    need("torch", found.returncode == 0, f"{PYTHON} has none")


def train(fault: str, last: int = 1, options: str = "") -> str:
    return TRAIN.replace("FAULT", fault).replace("LAST", str(last)).replace("OPTIONS", options)


LONG = pytest.mark.long
QUICK = "soft_timeout=1.5, hard_timeout=3"


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4, 8])
def test_ranks_blocked_in_a_collective_come_out_when_another_fails(tmp_path: Path, size: int) -> None:
    outcome = inprocess_ranks.run(tmp_path, size, train('raise RuntimeError("boom")', last=5), python=PYTHON)
    assert outcome.noted("end") == [[{"how": "returned", "value": size}]] * size, outcome.output
    assert len(outcome.restart_ms()) == 5
    assert max(outcome.restart_ms()) < 5000  # the group's time-out is 50 s


GROUPS = """
import torch, torch.distributed as dist

def train(call: CallWrapper):
    dist.init_process_group("gloo", store=call.torch_store(), rank=call.rank, world_size=call.world_size)
    total = torch.ones(1)
    dist.all_reduce(total, group=dist.new_group())
    dist.destroy_process_group()
    return total.item()

go(Wrapper(max_restarts=0), train)
"""


def test_further_groups_find_the_store_that_only_the_first_was_given(tmp_path: Path) -> None:
    outcome = inprocess_ranks.run(tmp_path, 2, GROUPS, python=PYTHON)
    assert outcome.noted("end") == [[{"how": "returned", "value": 2.0}]] * 2, outcome.output


HANG_UP = """
import datetime, socket, torch, torch.distributed as dist
from prefect_ft.inprocess import gloo

def train(call: CallWrapper):
    dist.init_process_group(
        "gloo", store=call.torch_store(), rank=call.rank, world_size=call.world_size,
        timeout=datetime.timedelta(seconds=50),
    )
    total = torch.ones(1)
    dist.all_reduce(total)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        if ME == 1:
            note("hung up on", number=gloo.hang_up())
        try:
            dist.all_reduce(total)
        except RuntimeError:
            note("broken")
        accepted = server.accept()[0]
        ours.sendall(b"!")
        note("our own", heard=accepted.recv(1).decode())
    dist.destroy_process_group()

go(Wrapper(), train)
"""


@pytest.mark.long
def test_hanging_up_ends_a_collective_on_all_ranks_and_no_other_connection(tmp_path: Path) -> None:
    outcome = inprocess_ranks.run(tmp_path, 2, HANG_UP, python=PYTHON)
    assert outcome.noted("hung up on") == [[], [{"number": 1}]], outcome.output
    assert outcome.noted("broken") == [[{}], [{}]]
    assert outcome.noted("our own") == [[{"heard": "!"}]] * 2
    assert outcome.codes == [0, 0]


@LONG
@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("fault", "options"),
    [
        pytest.param("os.kill(os.getpid(), signal.SIGTERM)", "", id="terminated"),
        pytest.param("os.abort()", "", id="aborted"),
        pytest.param("import ctypes; ctypes.string_at(0)", "", id="segfault"),
        pytest.param("os._exit(0)", "", id="gone-without-a-word"),
        pytest.param("sys.exit(3)", "", id="system-exit"),
        pytest.param("os.kill(os.getpid(), signal.SIGSTOP)", QUICK, id="stopped"),
        pytest.param("time.sleep(60)", f"{QUICK}, health_check=lambda s: ME == 1 and 1 / 0", id="hangs"),
    ],
)
def test_ranks_in_a_collective_go_on_with_the_spare_however_one_is_lost(
    tmp_path: Path, size: int, fault: str, options: str
) -> None:
    assignment = f"rank_assignment=compose(fill_gaps, max_active({size}))"
    body = train(fault, options=f"{assignment}, {options}")
    outcome = inprocess_ranks.Ranks(tmp_path, size + 1, body, python=PYTHON).wait(120)
    others = [rank for rank in range(size + 1) if rank != 1]
    ended = [{"how": "returned", "value": float(size)}]
    assert [outcome.noted("end")[rank] for rank in others] == [ended] * size, outcome.output


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_rank_killed_in_a_collective_is_replaced_by_the_spare(tmp_path: Path, lost: int) -> None:
    options = "rank_assignment=compose(fill_gaps, max_active(2))"
    body = train("os.kill(os.getpid(), 9)", options=options).replace("ME == 1", f"ME == {lost}")
    outcome = inprocess_ranks.run(tmp_path, 3, body, python=PYTHON)
    survivors = [rank for rank in range(3) if rank != lost]
    assert [outcome.noted("end")[rank] for rank in survivors] == [[{"how": "returned", "value": 2.0}]] * 2, (
        outcome.output
    )


@pytest.mark.long
def test_a_rank_lost_while_the_group_is_set_up_is_not_waited_for(tmp_path: Path) -> None:
    body = train('raise RuntimeError("boom")', last=2).replace(
        "    dist.init_process_group(",
        "    if call.iteration == 1 and ME == 2: os._exit(1)\n    dist.init_process_group(",
        1,
    )
    outcome = inprocess_ranks.run(tmp_path, 3, body, python=PYTHON)
    assert [outcome.places(rank)[-1][:3] for rank in (0, 1)] == [[2, 0, 2], [2, 1, 2]], outcome.output
    assert outcome.codes == [0, 0, 1]


BESIDE = """
import os, sys
import torch.distributed as dist
from prefect_ft.inprocess import CallWrapper, Wrapper

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
calls = []

def train(call: CallWrapper):
    port = int(os.environ["MASTER_PORT"]) + 1 + call.iteration
    mine = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    mine.set(f"{call.iteration} {rank}", "here")
    mine.wait([f"{call.iteration} {each}" for each in range(size)])
    if call.iteration == 0:
        if rank == 1:
            raise RuntimeError("once")
        while True:
            call.ping()
    return call.iteration

for _ in range(2):
    calls.append(Wrapper()(train)())
print("rank", rank, calls)
"""


@pytest.mark.long
@pytest.mark.timeout(120)
def test_under_torchrun_the_port_after_its_own_is_left_to_the_application(tmp_path: Path) -> None:
    """As in examples that have a store of their own there. Two calls, each with a restart."""
    (tmp_path / "train.py").write_text(BESIDE)
    where = [f"--master-port={free_port()}", "--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=static"]
    done = subprocess.run(
        [PYTHON, "-m", "torch.distributed.run", "--master-addr=127.0.0.1", *where, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(prefect_ft.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(line for line in done.stdout.splitlines() if "rank" in line) == [
        "rank 0 [1, 1]",
        "rank 1 [1, 1]",
    ]
