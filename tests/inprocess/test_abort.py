"""What torch's groups need: aborts at the same time, and a watchdog that leaves errors to the wrapper."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import inprocess_ranks
import pytest

from prefect_ft.inprocess import abort

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
        self.barrier, self.fails = barrier, fails

    def abort(self) -> None:
        self.barrier.wait(10)
        if self.fails:
            raise RuntimeError("aborted twice")


def test_groups_are_aborted_at_the_same_time() -> None:
    barrier = threading.Barrier(3)
    assert abort._abort_together([Group(barrier) for _ in range(3)]) is None
    assert not barrier.broken


def test_what_an_abort_raises_is_told_once_all_are_aborted() -> None:
    barrier = threading.Barrier(2)
    failure = abort._abort_together([Group(barrier, fails=True), Group(barrier)])
    assert str(failure) == "aborted twice"


@pytest.mark.parametrize(
    ("arguments", "given", "inside"),
    [
        pytest.param("", {}, abort.WATCHED_BY_THE_WRAPPER, id="set"),
        pytest.param("soft_timeout=None, hard_timeout=None", {}, {}, id="nothing-else-ends-who-hangs"),
        pytest.param(
            "",
            {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"},
            {**abort.WATCHED_BY_THE_WRAPPER, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"},
            id="the-users-own",
        ),
    ],
)
def test_torchs_watchdog_leaves_errors_to_the_wrapper(
    tmp_path: Path, arguments: str, given: dict[str, str], inside: dict[str, str]
) -> None:
    names = [*abort.WATCHED_BY_THE_WRAPPER]
    assert not any(name in os.environ for name in names)
    body = ENVIRONMENT.format(names=names, arguments=arguments)
    outcome = inprocess_ranks.run(tmp_path, 1, body, env=given)
    assert outcome.noted("inside") == [[{name: inside.get(name) for name in names}]], outcome.output
    assert outcome.noted("after") == [[{name: given.get(name) for name in names}]]
