"""How much the worker's devices are in use: by a command of the user's, else by NVIDIA's library.

In a thread of its own: a device that is lost can keep whoever asks for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import signal
import subprocess
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence

from prefect_ft.worker.processes import Held

Usage = Dict[str, float]
"""By device, the share of the time in which it computed, in percent."""

COMMAND_TIMEOUT_S = 30.0
"""How long the command may take; then nothing is known."""


class DeviceMeter:
    """`latest` is what the last question was answered, None as long as nothing is known."""

    def __init__(self, command: Optional[Sequence[str]]) -> None:
        """`command` prints one JSON object, from device to percent."""
        self.latest: Optional[Usage] = None
        self._command = list(command) if command else None
        self._wanted = threading.Event()
        threading.Thread(target=self._work, name="devices", daemon=True).start()

    def ask(self) -> None:
        """Have the devices looked at; returns at once."""
        self._wanted.set()

    def _work(self) -> None:
        read = self._by_command if self._command else _nvml()
        while read is not None:
            self._wanted.wait()
            self._wanted.clear()
            try:
                self.latest = read()
            except Exception:  # a library or a command of whatever kind: it says nothing, and that is all
                self.latest = None

    def _by_command(self) -> Usage:
        assert self._command is not None
        process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        with process, contextlib.closing(Held(process.pid)) as held:
            try:
                told, _ = process.communicate(timeout=COMMAND_TIMEOUT_S)
            except BaseException:
                held.send(signal.SIGKILL)  # the agent may have collected it, from another thread
                raise
        if process.returncode:
            raise OSError(f"exit code {process.returncode}")
        return usage(json.loads(told))


def usage(told: Any) -> Usage:
    """Read an object from device to percent; raises ValueError for anything else."""
    if not isinstance(told, dict) or not all(
        type(value) in (int, float) and math.isfinite(value) for value in told.values()
    ):
        raise ValueError("no object from device to percent")
    return {name: float(value) for name, value in told.items()}


class _Rates(ctypes.Structure):
    """nvmlUtilization_t."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def _nvml() -> Optional[Callable[[], Usage]]:
    """Return what reads the visible devices; None where the library or a device is missing."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        count = ctypes.c_uint()
        if library.nvmlInit_v2() != 0 or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    handles: Dict[str, ctypes.c_void_p] = {}
    for index in _visible(count.value):
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == 0:
            handles[str(index)] = handle
    return (lambda: _rates(library, handles)) if handles else None


def _visible(count: int) -> List[int]:
    """Return the devices that the worker's environment lets its ranks see; all where it names none by number."""
    words = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    named = [int(word) for word in words if word.isdigit() and int(word) < count]
    return named or list(range(count))


def _rates(library: ctypes.CDLL, handles: Dict[str, ctypes.c_void_p]) -> Usage:
    found = {}
    for name, handle in handles.items():
        rates = _Rates()
        if library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0:
            found[name] = float(rates.gpu)
    return found
