"""Faults on purpose, to try restarts with: each comes from a thread, so many seconds from now."""

from __future__ import annotations

import ctypes
import enum
import os
import random
import re
import signal
import sys
import threading
import time
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

Callback = Optional[Callable[[], object]]


class Fault(enum.Enum):
    """What happens."""

    GPU_ERROR = enum.auto()
    GPU_SLEEP = enum.auto()
    WORKLOAD_EXC = enum.auto()
    ASYNC_EXC = enum.auto()
    SIGNAL_EXC = enum.auto()
    OS_ABORT = enum.auto()
    LOCK_GIL = enum.auto()
    SEGFAULT = enum.auto()
    SIGINT = enum.auto()
    SIGKILL = enum.auto()
    SIGTERM = enum.auto()
    SIGSTOP = enum.auto()


class InjectedException(Exception):  # noqa: N818  (the name that users know)
    """Raised where a fault is an exception."""


_is_wanted = threading.Event()


def maybe_raise_workload_exception() -> None:
    """Raise InjectedException where WORKLOAD_EXC asks for it; for the training loop to call."""
    if _is_wanted.is_set():
        _is_wanted.clear()
        raise InjectedException


def clear_workload_exception() -> None:
    """Clear the request of WORKLOAD_EXC."""
    _is_wanted.clear()


def _gpu_error() -> None:
    torch = sys.modules["torch"]
    device = torch.device(torch.cuda.current_device())
    place = torch.ones(1, dtype=torch.int64).to(device)
    torch.zeros(1, dtype=torch.int64).to(device)[place] = 0


def _raise_in_main_thread() -> None:
    ident = threading.main_thread().ident
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(ident or 0), ctypes.py_object(InjectedException)
    )


def _raise_at_signal(*_: Any) -> None:
    raise InjectedException


_EFFECTS: Dict[Fault, Callable[[], object]] = {
    Fault.GPU_ERROR: _gpu_error,
    Fault.GPU_SLEEP: lambda: sys.modules["torch"].cuda._sleep(1 << 62),
    Fault.WORKLOAD_EXC: _is_wanted.set,
    Fault.ASYNC_EXC: _raise_in_main_thread,
    Fault.SIGNAL_EXC: lambda: os.kill(os.getpid(), signal.SIGUSR1),
    Fault.OS_ABORT: os.abort,
    Fault.LOCK_GIL: lambda: re.match(r"(a?){40}a{40}", "a" * 40),
    Fault.SEGFAULT: lambda: ctypes.string_at(1),
    Fault.SIGINT: lambda: os.kill(os.getpid(), signal.SIGINT),
    Fault.SIGKILL: lambda: os.kill(os.getpid(), signal.SIGKILL),
    Fault.SIGTERM: lambda: os.kill(os.getpid(), signal.SIGTERM),
    Fault.SIGSTOP: lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


def dispatch_fault_injection(fault: Fault, delay: float, callback: Callback = None) -> None:
    """Have a fault happen `delay` seconds from now; `callback` is called right before."""
    if fault == Fault.SIGNAL_EXC:
        signal.signal(signal.SIGUSR1, _raise_at_signal)

    def happen() -> None:
        time.sleep(delay)
        if callback is not None:
            callback()
        _EFFECTS[fault]()

    threading.Thread(target=happen, name="nvrx-fault", daemon=True).start()


def inject_fault(  # noqa: PLR0917  (their arguments, in their order)
    faults: Tuple[Fault, ...] = tuple(Fault),
    num_faults: "int | Tuple[int, int]" = 1,
    keep_alive: int = 1,
    delay: "float | Tuple[float, float]" = 0.0,
    seed: Optional[int] = None,
    callback: Callback = None,
) -> None:
    """Inject a fault into some ranks, drawn at random, but not the first `keep_alive`. Use one seed on all ranks.

    `num_faults` and `delay` (seconds) may be ranges.
    """
    drawn = random.Random(seed)  # noqa: S311
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    wanted = drawn.randint(*num_faults) if isinstance(num_faults, tuple) else num_faults
    chosen = drawn.sample(range(keep_alive, size), min(wanted, max(0, size - keep_alive)))
    after_s = drawn.uniform(*delay) if isinstance(delay, tuple) else delay
    fault = drawn.choice(_listed(faults))
    if rank in chosen:
        dispatch_fault_injection(fault, after_s, callback)


def _listed(faults: "Fault | Sequence[Fault]") -> Sequence[Fault]:
    return [faults] if isinstance(faults, Fault) else list(faults)


__all__ = [
    "Fault",
    "InjectedException",
    "clear_workload_exception",
    "dispatch_fault_injection",
    "inject_fault",
    "maybe_raise_workload_exception",
]
