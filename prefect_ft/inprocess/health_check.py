"""Whether a rank is fit for another iteration: a check raises, or does nothing."""

from __future__ import annotations

import sys

from prefect_ft.inprocess.errors import HealthCheckError
from prefect_ft.inprocess.state import State


class CudaHealthCheck:
    """Synchronize the rank's current CUDA device; does nothing where CUDA is not in use.

    That raises a sticky error of the device, after which nothing works in this process.
    """

    def __call__(self, state: State) -> None:  # noqa: ARG002  (what every hook is given)
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return
        try:
            torch.cuda.synchronize()
        except RuntimeError as exc:
            raise HealthCheckError(f"the CUDA device no longer works: {exc}") from exc
