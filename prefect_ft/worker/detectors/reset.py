"""Resets the device that PREFECT_FT_DEVICE names, with its vendor's own tool: the default of `heal`.

Exit code 0: it was reset. Anything else, with a line on standard error: the device cannot be reset, it is in
use, or the tool failed. Never run on a device: see docs/faults.md.
"""

from __future__ import annotations

import os
import re
import sys
from typing import List

from prefect_ft.worker.detectors.sources import MissingError, printed, tool

_INDEX = re.compile(r"[0-9]{1,3}")
_PCI = re.compile(
    r"(?:PCI:)?(?P<address>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?P<function>\.[0-7])?"
)
_OF_NVIDIA = ("xid-", "gpu-", "dcgm-", "ecc-", "row-remap-", "nvlink-")
_OF_ASCEND = re.compile(r"[0-9A-F]{8}|npu-[a-z]+")


class _RefusedError(Exception):
    """The device is not to be reset; the text says why."""


def reset(device: str, code: str) -> None:
    """Reset a device that has shown a fault of this code; raises MissingError, OSError or _RefusedError."""
    if code.startswith(_OF_NVIDIA):
        _reset_nvidia(device)
    elif _OF_ASCEND.fullmatch(code):
        _reset_ascend(device)
    else:
        raise _RefusedError(f"{code} is not a fault that a device reset repairs")


def _reset_nvidia(device: str) -> None:
    name = _nvidia_name(device)
    program = tool("nvidia-smi")
    users = printed([program, "--query-compute-apps=pid", "--format=csv,noheader", "-i", name]).split()
    if users:
        raise _RefusedError(f"device {name} is in use by {', '.join(users[:5])}")
    printed([program, "--gpu-reset", "-i", name])


def _nvidia_name(device: str) -> str:
    """Return the device in nvidia-smi's terms: its number, or its bus address."""
    if _INDEX.fullmatch(device):
        return device
    if found := _PCI.fullmatch(device):
        return found["address"] + (found["function"] or ".0")
    raise _RefusedError(f"device {device!r} is neither a number nor a PCI address")


def _reset_ascend(device: str) -> None:
    if not _INDEX.fullmatch(device):
        raise _RefusedError(f"device {device!r} is not a number")
    program = tool("npu-smi")
    if users := _holders(f"/dev/davinci{device}"):
        raise _RefusedError(f"device {device} is in use by {', '.join(map(str, users[:5]))}")
    printed([program, "set", "-t", "reset", "-i", device, "-c", "0"])


def _holders(path: str) -> List[int]:
    """Return the processes that have a file open, as far as this user may see them."""
    found = []
    for name in os.listdir("/proc"):
        directory = f"/proc/{name}/fd"
        try:
            if name.isdigit() and any(
                os.readlink(f"{directory}/{fd}") == path for fd in os.listdir(directory)
            ):
                found.append(int(name))
        except OSError:
            continue
    return found


def main() -> None:
    """Reset the device of the fault in the environment."""
    try:
        reset(os.environ["PREFECT_FT_DEVICE"], os.environ["PREFECT_FT_CODE"])
    except KeyError as exc:
        sys.exit(f"{exc.args[0]} is not set")
    except (MissingError, OSError, _RefusedError) as exc:
        sys.exit(f"not reset: {exc}")


if __name__ == "__main__":
    main()
