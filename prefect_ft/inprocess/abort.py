"""What must be torn down before the function is entered again: torch's process groups."""

from __future__ import annotations

import contextlib
import sys

from prefect_ft.inprocess import gloo
from prefect_ft.inprocess.state import State


class AbortTorchDistributed:
    """Tear down all process groups of this rank; does nothing where torch.distributed is not in use.

    NCCL's communicators are aborted, so that nothing in C still waits for them. Gloo's connections are shut down,
    so that peers that wait in a collective for this rank get an error.
    """

    def __call__(self, state: State) -> None:  # noqa: ARG002  (what every hook is given)
        abort_process_groups()


def abort_process_groups() -> None:
    """Tear down all process groups of this rank."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return
    core = sys.modules["torch.distributed.distributed_c10d"]
    with contextlib.suppress(AttributeError):  # missing in torch before 2.6
        if any("nccl" in dist.get_backend(group) for group in list(core._world.pg_map)):
            core._abort_process_group()
    if dist.is_initialized():
        gloo.hang_up()
        dist.destroy_process_group()
