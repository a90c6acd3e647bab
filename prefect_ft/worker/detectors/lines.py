"""Lines of the kernel, of drivers and of ranks that name a fault of a device: the device, and its vendor's code.

The forms are those of Linux 5.10 to 6.x, of NVIDIA's drivers, and of Ascend's logs. Pure.
"""

from __future__ import annotations

import re
from typing import Dict, Iterator, NamedTuple, Optional, Pattern, Tuple


class Named(NamedTuple):
    """A fault that a line names. `severity` is the line's own; None: it follows from the code."""

    device: str
    code: str
    severity: Optional[str] = None


_XID = re.compile(r"\bXid \((?P<device>[^)]{1,40})\): (?P<number>[0-9]{1,4})\b")
_SXID = re.compile(
    r"\bSXid \((?P<device>[^)]{1,40})\): (?P<number>[0-9]{4,6}), (?P<fatal>Fatal|Non-fatal)", re.IGNORECASE
)
_NPU = re.compile(r"\b(?:device|NPU)\W{0,3}(?P<device>[0-9]{1,3})\b.{0,60}?\b(?:0x)?(?P<code>[0-9A-F]{8})\b")
_EVENT_ID = re.compile(r"\bevent_id\W{1,4}(?P<code>0x[0-9A-Fa-f]{8})\b")
_DEVICE_ID = re.compile(r"\bdevice[ _]?id\W{0,4}(?P<device>[0-9]{1,3})\b", re.IGNORECASE)
_RECOVERY = "154"
_RECOVERY_ACTION = re.compile(
    r"recovery action changed from .{1,60} to 0x[0-9a-f]+ \((?P<action>[^)]{1,40})\)", re.IGNORECASE
)
_RECOVERY_SEVERITIES: Dict[str, Optional[str]] = {
    "none": None,
    "gpu reset required": "major",
    "drain and reset": "major",
    "node reboot required": "critical",
}
"""The actions that the driver itself asks for with Xid 154, as of release 570; a recovered device has no fault."""

UNNAMED_NPU = "npu"
"""The device of a line that names an event of an NPU and no NPU."""

_KERNEL: Tuple[Tuple[str, Pattern[str]], ...] = (
    ("pcie-aer-fatal", re.compile(r"AER: Uncorrect(?:ed|able) \(Fatal\) error.{0,40}?(?P<device>[0-9a-f:.]{7,12})\b")),
    (
        "pcie-aer-fatal",
        re.compile(r"(?P<device>[0-9a-f:.]{7,12}): (?:AER: )?PCIe Bus Error: severity=Uncorrect(?:ed|able) \(Fatal\)"),
    ),
    ("memory-uncorrected", re.compile(r"\bEDAC (?P<device>MC[0-9]+): [0-9]+ UE\b")),
    ("machine-check", re.compile(r"\[Hardware Error\]: (?P<device>CPU [0-9]+): Machine Check Exception")),
    ("fs-read-only", re.compile(r"\bEXT4-fs \((?P<device>[^)]{1,60})\): Remounting filesystem read-only")),
    ("fs-read-only", re.compile(r"\bXFS \((?P<device>[^)]{1,60})\): .{0,80}([Ss]hutting down|has been shut down)")),
    ("fs-error", re.compile(r"\bEXT4-fs error \(device (?P<device>[^)]{1,60})\)")),
    ("fs-error", re.compile(r"\bXFS \((?P<device>[^)]{1,60})\): .{0,40}[Cc]orruption")),
    ("disk-io-error", re.compile(r"\bEXT4-fs \((?P<device>[^)]{1,60})\): I/O error while")),
    ("disk-io-error", re.compile(r"\b(?:I/O|critical medium) error, dev (?P<device>[\w-]{1,40}), sector")),
    ("nic-fatal", re.compile(r"\bmlx5_core (?P<device>[0-9a-f:.]{7,12}):.{0,60}(handling bad device|Fatal error \d)")),
)  # fmt: skip
_KERNEL_MARKS = (
    "AER",
    "Bus Error",
    "EDAC",
    "Hardware Error",
    "-fs",
    "XFS",
    "I/O error",
    "medium error",
    "mlx5_core",
)

MARKS = ("Xid (", "fault code", "event_id")
"""A string that every relevant line of output contains; other lines are skipped."""


def in_output(line: str) -> Iterator[Named]:
    """Yield the fault of a device that a line of a rank's output names, if it names one."""
    if found := _XID.search(line):
        yield from _of_xid(found["device"], found["number"], line)
    elif "fault code" in line and (found := _NPU.search(line)):
        yield Named(found["device"], found["code"])
    elif found := _EVENT_ID.search(line):
        where = _DEVICE_ID.search(line)
        yield Named(where["device"] if where else UNNAMED_NPU, found["code"][2:].upper())


def _of_xid(device: str, number: str, line: str) -> Iterator[Named]:
    asked = _RECOVERY_ACTION.search(line) if number == _RECOVERY else None
    if asked is None:
        yield Named(device, f"xid-{number}")
    elif (severity := _RECOVERY_SEVERITIES.get(asked["action"].lower(), "warning")) is not None:
        yield Named(device, f"xid-{number}", severity)


def in_kernel_log(line: str) -> Iterator[Named]:
    """Yield the fault that a line of the kernel's log names, if it names one; corrected errors do not count."""
    if found := _SXID.search(line):
        severity = "critical" if found["fatal"].lower() == "fatal" else "warning"
        yield Named(found["device"], f"sxid-{found['number']}", severity)
        return
    named = list(in_output(line))
    yield from named
    if named or not any(mark in line for mark in _KERNEL_MARKS):
        return
    for code, form in _KERNEL:
        if found := form.search(line):
            yield Named(found["device"], code)
            return
