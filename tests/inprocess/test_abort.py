"""What torch's groups need: aborts at the same time, and a watchdog that leaves errors to the wrapper."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import inprocess_ranks
import pytest
from torches import torch

from prefect_ft.inprocess import abort

__all__ = ["torch"]

ENVIRONMENT = """
import json
NAMES = {names!r}

def train(call: CallWrapper):
    note("inside", **{{name: os.environ.get(name) for name in NAMES}})

go(Wrapper({arguments}), train)
note("after", **{{name: os.environ.get(name) for name in NAMES}})
"""


class Group:
    """A group whose abort returns when the others are aborted too, as kernels on one device are left."""

    def __init__(self, barrier: threading.Barrier, fails: bool = False) -> None:
        self.barrier, self.fails, self.is_aborted = barrier, fails, False

    def abort(self) -> None:
        if self.fails:
            raise RuntimeError("aborted twice")
        self.barrier.wait(10)
        self.is_aborted = True


def test_groups_are_aborted_at_the_same_time() -> None:
    barrier = threading.Barrier(3)
    groups = [Group(barrier) for _ in range(3)]
    assert abort._abort_together(groups) == []
    assert all(group.is_aborted for group in groups)


def test_what_an_abort_raises_is_told_once_all_are_aborted() -> None:
    barrier = threading.Barrier(2)
    waiting = Group(barrier)
    late = threading.Timer(0.05, barrier.wait)
    late.start()
    (failure,) = abort._abort_together([Group(barrier, fails=True), waiting])
    assert str(failure) == "aborted twice"
    assert waiting.is_aborted


RAISES = """
import torch.distributed as dist
from torch.distributed import distributed_c10d as core
from prefect_ft.inprocess import gloo
from prefect_ft.inprocess.abort import abort_process_groups

aborted = []
def broken(group):
    aborted.append(group)
    raise RuntimeError("it is broken")

def begin():
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    dist.new_group()
    core._world.pg_backend_config.update(dict.fromkeys(core._world.pg_backend_config, CONFIG))

hung_up = []
gloo.hang_up = lambda: hung_up.append(len(aborted))
dist.is_nccl_available = lambda: True
dist.ProcessGroup.abort = broken
begin()
try:
    abort_process_groups()
except RuntimeError as exc:
    note("raised", text=str(exc))
note("left", groups=len(aborted), hung_up=hung_up, is_initialized=dist.is_initialized())
begin()
"""


@pytest.mark.parametrize(("config", "aborts"), [("cpu:gloo,cuda:nccl", 3), ("cpu:gloo", 0)])
def test_groups_are_gone_where_an_abort_fails(torch: str, tmp_path: Path, config: str, aborts: int) -> None:
    """Two groups of NCCL, as torch configures them with CUDA; torch itself tries the first once more."""
    outcome = inprocess_ranks.run(tmp_path, 1, f"CONFIG = {config!r}\n{RAISES}", python=torch)
    assert outcome.noted("raised") == [[{"text": "it is broken"}] if aborts else []], outcome.output
    assert outcome.noted("left") == [[{"groups": aborts, "hung_up": [0], "is_initialized": False}]]
    assert outcome.codes == [0], outcome.output


@pytest.mark.parametrize(
    ("arguments", "given", "inside"),
    [
        pytest.param("", {}, abort.NCCL_DEFAULTS, id="set"),
        pytest.param("soft_timeout=None, hard_timeout=None", {}, {}, id="nothing-else-ends-who-hangs"),
        pytest.param("soft_timeout=None", {}, abort.NCCL_DEFAULTS, id="who-hangs-is-killed"),
        pytest.param(
            "",
            {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"},
            {**abort.NCCL_DEFAULTS, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"},
            id="the-users-own",
        ),
        pytest.param(
            "", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, abort.NCCL_DEFAULTS, id="what-torchrun-gives-all"
        ),
        pytest.param(
            "",
            {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"},
            {**abort.NCCL_DEFAULTS, "TORCH_FR_BUFFER_SIZE": None},
            id="the-users-own-by-its-older-name",
        ),
    ],
)
def test_torchs_watchdog_leaves_errors_to_the_wrapper(
    tmp_path: Path, arguments: str, given: dict[str, str], inside: dict[str, str | None]
) -> None:
    names = [*abort.NCCL_DEFAULTS]
    assert not any(name in os.environ for name in names)
    body = ENVIRONMENT.format(names=names, arguments=arguments)
    outcome = inprocess_ranks.run(tmp_path, 1, body, env=given)
    assert outcome.noted("inside") == [[{name: inside.get(name) for name in names}]], outcome.output
    assert outcome.noted("after") == [[{name: given.get(name) for name in names}]]


def test_what_the_function_sets_itself_stays(tmp_path: Path) -> None:
    body = ENVIRONMENT.format(names=["TORCH_FR_BUFFER_SIZE"], arguments="")
    body = body.replace("    note(", '    os.environ["TORCH_FR_BUFFER_SIZE"] = "9"\n    note(')
    outcome = inprocess_ranks.run(tmp_path, 1, body)
    assert outcome.noted("after") == [[{"TORCH_FR_BUFFER_SIZE": "9"}]], outcome.output
