"""The hook `health_check` of the wrapper."""

from __future__ import annotations

import abc
import datetime
import logging
import sys
from typing import Optional

from prefect_ft.compat.nvrx import devices
from prefect_ft.compat.nvrx.exception import HealthCheckError, RestartError
from prefect_ft.compat.nvrx.state import FrozenState
from prefect_ft.compat.nvrx.threads import call_in_time, cuda_device

logger = logging.getLogger("nvrx")


class HealthCheck(abc.ABC):
    """Called before each entry, and after a fault, when `finalize` has been called.

    What it raises after a fault ends this rank.
    """

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Return `state`, for the next one in a `Compose`."""


class CudaHealthCheck(HealthCheck):
    """Synchronize LOCAL_RANK's CUDA device, for at most `timeout`; raises its error if it has failed."""

    def __init__(self, timeout: datetime.timedelta = datetime.timedelta(seconds=30)) -> None:
        self.timeout = timeout

    def __call__(self, state: FrozenState) -> FrozenState:
        """Do nothing where CUDA is not in use."""
        device = cuda_device()
        if device is not None:
            synchronize = sys.modules["torch"].cuda.synchronize
            call_in_time(self.timeout, lambda: synchronize(device))
            synchronize(device)
        return state


class FaultCounterExceeded(RestartError):  # noqa: N818  (the name that users know)
    """The function has failed too often on this rank."""


class FaultCounter(HealthCheck):
    """End this rank once the function has failed on it more than `max_rank_faults` times; None: never."""

    def __init__(self, max_rank_faults: Optional[int] = None) -> None:
        self.max_rank_faults = max_rank_faults
        self.faults_count = 0

    def __call__(self, state: FrozenState) -> FrozenState:
        """Count a failure of this rank; raise FaultCounterExceeded."""
        self.faults_count += state.fn_exception is not None
        if self.max_rank_faults is not None and self.faults_count > self.max_rank_faults:
            raise FaultCounterExceeded(
                f"{self.faults_count} failures, max_rank_faults is {self.max_rank_faults}"
            )
        return state


class _DeviceCheck(HealthCheck):
    """A check of one device, or of all where `device_index` is None; passes where the device cannot be asked."""

    def __init__(self, device_index: Optional[int] = None) -> None:
        self.device_index = device_index


class ChainedGPUHealthCheck(_DeviceCheck):
    """Ask NVML, by `nvidia-smi`, whether the GPU needs a reset or a reboot. Never run on a device."""

    def __call__(self, state: FrozenState) -> FrozenState:
        """Raise HealthCheckError where it does."""
        asked = devices.recovery_action(self.device_index)
        if asked is not None:
            raise HealthCheckError(f"the GPU asks for: {asked}")
        return state


class ChainedNVLHealthCheck(_DeviceCheck):
    """Log the GPU's NVLinks that are down; as in theirs, that ends no rank. Never run on a device."""

    def __call__(self, state: FrozenState) -> FrozenState:
        """Return the state, whatever is down."""
        for link in devices.links_down(self.device_index):
            logger.warning("NVLink is down: %s", link)
        return state


class ChainedNicHealthCheck(_DeviceCheck):
    """Check whether an InfiniBand port that was up when this was created is down. Never run on a device."""

    def __init__(self, device_index: Optional[int] = None) -> None:
        super().__init__(device_index)
        self._up = devices.ports_up()

    def __call__(self, state: FrozenState) -> FrozenState:
        """Raise HealthCheckError where one is."""
        down = sorted(self._up - devices.ports_up())
        if down:
            raise HealthCheckError(f"network ports have gone down: {', '.join(down)}")
        return state
