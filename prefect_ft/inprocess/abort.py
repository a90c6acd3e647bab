"""What must be torn down before the function is entered again: torch's process groups."""

from __future__ import annotations

import sys
import threading
from typing import Any, Dict, List, Optional, Sequence

from prefect_ft.inprocess import gloo
from prefect_ft.inprocess.state import State

WATCHED_BY_THE_WRAPPER: Dict[str, str] = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # the default ends the process at an error of a peer
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",  # and this one at an error of the device
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # and this one where the watchdog waits
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # who dumps lives on for eight minutes afterwards, and the group with it
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "25",  # after an error it sleeps four times this: a minute by default
    "TORCH_FR_BUFFER_SIZE": "0",  # before that it looks up where the collective was called: six seconds
}
"""What keeps the watchdog of torch's NCCL groups from ending, or holding up, a rank that is to restart.

A group is gone only when its watchdog is. The variables are ProcessGroupNCCL's (torch 2.11), which reads them when a
group is made.
"""


class AbortTorchDistributed:
    """Tear down all process groups of this rank; does nothing where torch.distributed is not in use.

    NCCL's communicators are aborted, so that nothing in C still waits for them. Gloo's connections are shut down,
    so that peers that wait in a collective for this rank get an error.
    """

    def __call__(self, state: State) -> None:  # noqa: ARG002  (what every hook is given)
        abort_process_groups()


def abort_process_groups() -> None:
    """Tear down all process groups of this rank; raises what an abort raised, once all is done."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return
    core = sys.modules["torch.distributed.distributed_c10d"]
    failure = None
    if hasattr(core, "_abort_process_group"):  # missing in torch before 2.6
        groups = [group for group in list(core._world.pg_map) if "nccl" in dist.get_backend(group)]
        if groups:
            failure = _abort_together(groups)
            core._abort_process_group()
    if dist.is_initialized():
        gloo.hang_up()
        dist.destroy_process_group()
    if failure is not None:
        raise failure


def _abort_together(groups: Sequence[Any]) -> Optional[BaseException]:
    """Abort groups, all at the same time; return what one of them raised.

    One after the other would hang: whoever is aborted frees memory, which waits for all kernels on the device, and
    so for a collective of a group whose turn has not come.
    """
    failures: List[BaseException] = []

    def abort(group: Any) -> None:
        try:
            group.abort()
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=abort, args=(group,), daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures[0] if failures else None
