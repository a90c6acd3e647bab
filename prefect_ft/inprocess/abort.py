"""What must be torn down before the function is entered again: torch's process groups."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any, Dict, Iterator, List, Sequence

from prefect_ft.inprocess import gloo
from prefect_ft.inprocess.state import State

NCCL_DEFAULTS: Dict[str, str] = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # torch's default ends the process at an error of a peer
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

_OF_LAUNCHERS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
"""What torchrun, and an agent as it does, gives all ranks: it says nothing of what the user wants."""

_OLDER_NAMES = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
}


@contextlib.contextmanager
def nccl_defaults() -> Iterator[None]:
    """Set the variables that the user has not set; put back afterwards what is still as it was set here."""
    before = {name: os.environ.get(name) for name in NCCL_DEFAULTS}
    chosen = {
        name: value
        for name, value in NCCL_DEFAULTS.items()
        if before[name] in (None, _OF_LAUNCHERS.get(name))
        and os.environ.get(_OLDER_NAMES.get(name, "")) is None
    }
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name, value in chosen.items():
            was = before[name]
            if os.environ.get(name) != value:
                continue
            if was is None:
                del os.environ[name]
            else:
                os.environ[name] = was


class AbortTorchDistributed:
    """Tear down all process groups of this rank; does nothing where torch.distributed is not in use.

    Gloo's connections are shut down, so that peers that wait in a collective for this rank get an error. NCCL's
    communicators are aborted, so that nothing in C still waits for them.
    """

    def __call__(self, state: State) -> None:  # noqa: ARG002  (what every hook is given)
        abort_process_groups()


def abort_process_groups() -> None:
    """Tear down all process groups of this rank; raises what an abort raised, once all is done."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return
    core = sys.modules["torch.distributed.distributed_c10d"]
    gloo.hang_up()
    failures: List[BaseException] = []
    if dist.is_nccl_available() and hasattr(core, "_abort_process_group"):  # missing in torch before 2.6
        groups = [group for group in list(core._world.pg_map) if _is_of_nccl(core, group)]
        if groups:
            failures += _abort_together(groups)
            try:
                core._abort_process_group()  # which forgets them; it finds them aborted
            except Exception as exc:
                failures.append(exc)
    if dist.is_initialized():
        dist.destroy_process_group()
    if failures:
        raise failures[0]


def _is_of_nccl(core: Any, group: Any) -> bool:
    """Return whether a group has NCCL for any device, as that of `cpu:gloo,cuda:nccl`."""
    return "nccl" in str(core._world.pg_backend_config.get(group, ""))


def _abort_together(groups: Sequence[Any]) -> List[BaseException]:
    """Abort groups, all at the same time; return what they raised.

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
    return failures
