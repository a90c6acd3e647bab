"""How much the worker's devices are in use: by a command of the user's, else by NVIDIA's library.

In a thread of its own: a query of a lost device may never return.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import signal
import subprocess
import threading
from typing import Any, Dict, Optional, Sequence, Tuple

from prefect_ft.worker.detectors import nvml
from prefect_ft.worker.processes import Held

Usage = Dict[str, float]
"""By device, the share of the time in which it computed, in percent."""

COMMAND_TIMEOUT_S = 30.0
"""How long the command may take; then nothing is known."""


class DeviceMeter:
    """`latest` is the answer to the last query, None as long as nothing is known."""

    def __init__(self, command: Optional[Sequence[str]]) -> None:
        """`command` prints one JSON object, from device to percent."""
        self.latest: Optional[Usage] = None
        self._command = list(command) if command else None
        self._nvml: Optional[Tuple[Any, Dict[str, ctypes.c_void_p]]] = None
        self._is_missing = False
        """Whether there is no library that could be asked."""
        self._rests = False
        self._wanted = threading.Event()
        threading.Thread(target=self._work, name="devices", daemon=True).start()

    def ask(self) -> None:
        """Request a query of the devices; returns at once."""
        self._rests = False
        self._wanted.set()

    def rest(self) -> None:
        """Release the devices until the next query: a device can only be reset while it is unused; returns at once."""
        self._rests = True
        self._wanted.set()

    def _work(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            try:
                if self._rests:
                    self._release()
                else:
                    self.latest = self._read()
            except Exception:  # any error of a library or command: its usage is unknown
                self.latest = None

    def _read(self) -> Optional[Usage]:
        if self._command is not None:
            return self._by_command()
        if self._nvml is None and not self._is_missing:
            try:
                self._nvml = nvml.opened()
            except nvml.MissingError:
                self._is_missing = True
        return _rates(*self._nvml) if self._nvml is not None else None

    def _release(self) -> None:
        opened, self._nvml = self._nvml, None
        if opened is not None:
            opened[0].nvmlShutdown()

    def _by_command(self) -> Usage:
        assert self._command is not None
        process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        with process, contextlib.closing(Held(process.pid)) as held:
            try:
                output, _ = process.communicate(timeout=COMMAND_TIMEOUT_S)
            except BaseException:
                held.send(signal.SIGKILL)  # the agent may have reaped it, from another thread
                raise
        if process.returncode:
            raise OSError(f"exit code {process.returncode}")
        return usage(json.loads(output))


def usage(answer: Any) -> Usage:
    """Read an object from device to percent; raises ValueError for anything else."""
    if not isinstance(answer, dict) or not all(
        type(value) in (int, float) and math.isfinite(value) for value in answer.values()
    ):
        raise ValueError("no object from device to percent")
    return {name: float(value) for name, value in answer.items()}


class _Rates(ctypes.Structure):
    """nvmlUtilization_t."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def _rates(library: ctypes.CDLL, handles: Dict[str, ctypes.c_void_p]) -> Usage:
    found = {}
    for name, handle in handles.items():
        rates = _Rates()
        if library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0:
            found[name] = float(rates.gpu)
    return found
