"""The hook `abort` of the wrapper."""

from __future__ import annotations

import abc
import sys
from typing import Optional

from prefect_ft.compat.nvrx.state import FrozenState
from prefect_ft.inprocess.abort import abort_process_groups


class Abort(abc.ABC):
    """Called after a fault, to tear down what ranks may hang in."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Return `state`, for the next one in a `Compose`."""


class AbortTorchDistributed(Abort):
    """Tear down all process groups of this rank, as `prefect_ft.inprocess.abort.AbortTorchDistributed` does.

    `torch_fr_trace_path` is accepted: flight-recorder traces are not collected.
    """

    def __init__(self, torch_fr_trace_path: Optional[str] = None) -> None:
        self.torch_fr_trace_path = torch_fr_trace_path

    def __call__(self, state: FrozenState) -> FrozenState:
        """Do nothing where torch.distributed is not in use."""
        abort_process_groups()
        return state


class AbortTransformerEngine(Abort):
    """Release the process groups that Transformer Engine holds: userbuffers and FP8 state. Never run on a device."""

    def __call__(self, state: FrozenState) -> FrozenState:
        """Do nothing where it is not loaded."""
        base = sys.modules.get("transformer_engine.pytorch.module.base")
        if base is not None:
            base.destroy_ub()
        fp8 = sys.modules.get("transformer_engine.pytorch.fp8")
        if fp8 is not None:
            fp8.FP8GlobalStateManager.reset()
        return state


class AbortPersistentCheckpointProcesses(Abort):
    """Close the persistent workers of asynchronous checkpoints (Megatron's, NVRx's), where a script uses them."""

    def __call__(self, state: FrozenState) -> FrozenState:
        """Do nothing where their module is not loaded."""
        core = sys.modules.get("nvidia_resiliency_ext.checkpointing.async_ckpt.core")
        if core is not None:
            core.abort_nvrx_checkpoint()
        return state
