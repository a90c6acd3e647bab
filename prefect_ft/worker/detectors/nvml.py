"""Faults that NVIDIA's library reports: Xids, uncorrected ECC errors, row remapping, NVLink, lost devices.

The functions, structures and constants are those of nvml.h (NVML API reference).
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from prefect_ft.worker.detectors.sources import Fault, Faults, MissingError

__all__ = ["LIBRARY", "MissingError", "faults", "number_at", "opened", "visible"]

LIBRARY = "libnvidia-ml.so.1"

_DOUBLE_BIT_ECC, _XID_CRITICAL = 0x2, 0x8
"""nvmlEventTypeDoubleBitEccError, nvmlEventTypeXidCriticalError."""

_TIMEOUT, _NOT_FOUND, _GPU_IS_LOST, _RESET_REQUIRED = 10, 6, 15, 16
"""Of nvmlReturn_t."""

_UNCORRECTED, _VOLATILE = 1, 0
"""NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC."""

_MAX_LINKS = 18
"""NVML_NVLINK_MAX_LINKS."""

_WAIT_MS = 1000

_PLACE = re.compile(r"(?:PCI:)?([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})(?:\.[0-7])?\Z")

_BROKEN = {
    _GPU_IS_LOST: ("gpu-lost", "the device is lost: it has fallen off the bus or cannot be reached"),
    _RESET_REQUIRED: ("gpu-reset-required", "the device must be reset before it can be used again"),
}


class _Event(ctypes.Structure):
    """nvmlEventData_t."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _State(NamedTuple):
    """The state of a device; None where the library does not report it."""

    broken: int
    ecc: Any
    rows: Any
    links: Tuple[bool, ...]


class _PciInfo(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


_NUMBERS: Dict[Tuple[int, int, int], str] = {}
"""The devices' numbers by PCI domain, bus and device, once `faults` has asked for them."""


def number_at(device: str) -> str:
    """Return the number of a device that the kernel names by its place, as `PCI:0000:4f:00`; else the name as it is."""
    place = _PLACE.match(device)
    if place is None:
        return device
    domain, bus, slot = (int(part, 16) for part in place.groups())
    return _NUMBERS.get((domain, bus, slot), device)


def visible(library: Any, count: int) -> List[int]:
    """Return the devices that CUDA_VISIBLE_DEVICES leaves to ranks, as CUDA reads it: up to the first unknown one.

    None where one is named twice.
    Without it all, and also where it names parts of devices (MIG) or ids that the library does not tell.
    """
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    if told is None or "MIG-" in told:
        return list(range(count))
    ids: Dict[str, int] = {}
    if "GPU-" in told:
        ids = {name: index for index in range(count) if (name := _uuid(library, index))}
        if not ids:
            return list(range(count))
    chosen: List[int] = []
    for word in told.split(","):
        index = _index_of(word.strip(), ids)
        if index is None or index >= count:
            break
        if index in chosen:
            return []  # CUDA refuses all where one is named twice
        chosen.append(index)
    return chosen


def _index_of(word: str, ids: Dict[str, int]) -> Optional[int]:
    """Return the device that a word names by its number, or by the beginning of its id."""
    if word.isdecimal():
        return int(word)
    named = [
        index
        for name, index in ids.items()
        if word.startswith("GPU-") and word != "GPU-" and name.startswith(word)
    ]
    return named[0] if len(named) == 1 else None


def _uuid(library: Any, index: int) -> str:
    handle, told = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
        return ""
    return (
        told.value.decode()
        if _asked(library, "nvmlDeviceGetUUID", handle, told, ctypes.c_uint(96)) == 0
        else ""
    )


def _note_places(library: Any, handles: Dict[str, ctypes.c_void_p]) -> None:
    for name, handle in handles.items():
        told = _PciInfo()
        if _asked(library, "nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(told)) == 0:
            _NUMBERS[told.domain, told.bus, told.device] = name


def faults(every_s: float) -> Faults:
    """Yield the faults of the visible devices as they come; raises MissingError without library or device."""
    library, handles = opened()
    _note_places(library, handles)
    events = _registered(library, handles)
    names = {handle.value: name for name, handle in handles.items()}
    states = {name: _state(library, handle) for name, handle in handles.items()}
    yield None
    for name, state in states.items():
        yield from _changes(name, None, state)
    due = time.monotonic() + every_s
    while True:
        if time.monotonic() >= due:
            due = time.monotonic() + every_s
            for name, handle in handles.items():
                state = _state(library, handle)
                yield from _changes(name, states[name], state)
                states[name] = state
        if events is None:
            time.sleep(_WAIT_MS / 1000)
        else:
            yield from _next_event(library, events, names)
        yield None


def opened() -> Tuple[Any, Dict[str, ctypes.c_void_p]]:
    """Start NVIDIA's library; return it, and the visible devices by their numbers. Raises MissingError."""
    try:
        library = ctypes.CDLL(LIBRARY)
        count = ctypes.c_uint()
        if (code := library.nvmlInit_v2()) != 0:
            raise MissingError(f"NVIDIA's library does not start: error {code}")
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0 or not count.value:
            raise MissingError("there is no NVIDIA device")
    except (OSError, AttributeError) as exc:
        raise MissingError(f"{LIBRARY} cannot be loaded") from exc
    handles = {}
    for index in visible(library, count.value):
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == 0:
            handles[str(index)] = handle
    if not handles:
        raise MissingError("no NVIDIA device can be asked")
    return library, handles


def _registered(library: Any, handles: Dict[str, ctypes.c_void_p]) -> Any:
    """Return a set of the devices' events; None where no device reports any."""
    events = ctypes.c_void_p()
    try:
        if library.nvmlEventSetCreate(ctypes.byref(events)) != 0:
            return None
        kinds = ctypes.c_ulonglong(_XID_CRITICAL | _DOUBLE_BIT_ECC)
        results = [library.nvmlDeviceRegisterEvents(handle, kinds, events) for handle in handles.values()]
    except AttributeError:
        return None
    return events if 0 in results else None


def _next_event(library: Any, events: Any, names: Dict[Any, str]) -> Iterator[Fault]:
    event = _Event()
    code = library.nvmlEventSetWait_v2(events, ctypes.byref(event), ctypes.c_uint(_WAIT_MS))
    if code not in (0, _TIMEOUT):
        time.sleep(_WAIT_MS / 1000)  # a lost device returns at once every time: its state shows that
    if code != 0 or (name := names.get(event.device)) is None:
        return
    if event.type == _XID_CRITICAL:
        yield Fault(name, f"xid-{event.data}", None, f"NVML: Xid {event.data} on device {name}")
    elif event.type == _DOUBLE_BIT_ECC:
        yield Fault(name, "ecc-uncorrected", None, f"NVML: a double-bit ECC error on device {name}")


def _state(library: Any, handle: ctypes.c_void_p) -> _State:
    count = ctypes.c_ulonglong()
    kind, counter = ctypes.c_uint(_UNCORRECTED), ctypes.c_uint(_VOLATILE)
    code = _asked(library, "nvmlDeviceGetTotalEccErrors", handle, kind, counter, ctypes.byref(count))
    rows = [ctypes.c_uint() for _ in range(4)]
    has_rows = _asked(library, "nvmlDeviceGetRemappedRows", handle, *map(ctypes.byref, rows)) == 0
    return _State(
        broken=_broken(library, handle, code),
        ecc=count.value if code == 0 else None,
        rows=(bool(rows[2].value), bool(rows[3].value)) if has_rows else None,
        links=tuple(_links(library, handle)),
    )


def _broken(library: Any, handle: ctypes.c_void_p, code: int) -> int:
    """Return the error of a device that is lost or must be reset, else 0."""
    memory = (ctypes.c_ulonglong * 3)()
    codes = (code, _asked(library, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory)))
    return next((each for each in codes if each in _BROKEN), 0)


def _links(library: Any, handle: ctypes.c_void_p) -> Iterator[bool]:
    for link in range(_MAX_LINKS):
        active = ctypes.c_uint()
        if (
            _asked(library, "nvmlDeviceGetNvLinkState", handle, ctypes.c_uint(link), ctypes.byref(active))
            != 0
        ):
            return
        yield bool(active.value)


def _asked(library: Any, function: str, *arguments: Any) -> int:
    """Return the result of a function that older libraries do not have."""
    try:
        return int(getattr(library, function)(*arguments))
    except AttributeError:
        return _NOT_FOUND


def _changes(name: str, before: Optional[_State], now: _State) -> Iterator[Fault]:
    """Yield what has gone wrong with a device since the last look; the first look is the baseline."""
    where = f"on device {name}"
    if now.broken and (before is None or before.broken != now.broken):
        code, text = _BROKEN[now.broken]
        yield Fault(name, code, None, f"NVML: {text}: device {name}")
    if now.rows is not None:
        pending, failed = before.rows if before is not None and before.rows is not None else (False, False)
        if now.rows[1] and not failed:
            yield Fault(name, "row-remap-failed", None, f"NVML: remapping a row of memory has failed {where}")
        elif now.rows[0] and not pending:
            yield Fault(name, "row-remap-pending", None, f"NVML: a row of memory waits for a reset {where}")
    if before is None:
        return
    if now.ecc is not None and before.ecc is not None and now.ecc > before.ecc:
        more = now.ecc - before.ecc
        errors = "error" if more == 1 else "errors"
        yield Fault(name, "ecc-uncorrected", None, f"NVML: {more} more uncorrected ECC {errors} {where}")
    for link, (was_active, is_active) in enumerate(zip(before.links, now.links)):
        if was_active and not is_active:
            yield Fault(name, "nvlink-down", None, f"NVML: NVLink {link} has gone down {where}")
