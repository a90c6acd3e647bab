"""Faults that vendors' command-line tools report: `dcgmi health` of NVIDIA's DCGM, `npu-smi` of Ascend."""

from __future__ import annotations

import json
import re
import time
from typing import Any, Callable, Dict, Iterator, List

from prefect_ft.worker.detectors.sources import Fault, Faults, MissingError, Standing, printed, tool

_NPU_ID = re.compile(r"^\s*NPU ID\s*:\s*([0-9]+)\s*$", re.MULTILINE)
_NPU_HEALTH = re.compile(r"^\s*Health(?: Status)?\s*:\s*([A-Za-z]+)\s*$", re.MULTILINE)
_NPU_CODE = re.compile(r"\b0x([0-9A-Fa-f]{8})\b")
_NPU_SEVERITIES = {"warning": "warning", "alarm": "major", "critical": "critical"}
"""npu-smi's own words for a device's health, as the field's three levels above OK."""

_DCGM_SEVERITIES = {"warning": "warning", "failure": "major"}


def dcgm(every_s: float) -> Faults:
    """Yield what DCGM's health watches find; raises MissingError where there are none."""
    program = tool("dcgmi")

    def look() -> List[Fault]:
        return list(dcgm_faults(printed([program, "health", "--check", "--json"])))

    return _polled(look, every_s)


def npu(every_s: float) -> Faults:
    """Yield the faults of Ascend devices; raises MissingError without the tool or a device."""
    program = tool("npu-smi")
    try:
        ids = _NPU_ID.findall(printed([program, "info", "-l"]))
    except OSError as exc:
        raise MissingError(str(exc)) from exc
    if not ids:
        raise MissingError("npu-smi lists no device")

    def look() -> List[Fault]:
        return [
            fault
            for device in ids
            for fault in npu_faults(device, printed([program, "info", "-t", "health", "-i", device]))
        ]

    return _polled(look, every_s)


def _polled(look: Callable[[], List[Fault]], every_s: float) -> Faults:
    """Look periodically; if the first look fails, the source is missing; later failures are ignored."""
    standing = Standing()
    try:
        found = look()
    except (OSError, ValueError) as exc:
        raise MissingError(str(exc)) from exc
    yield None
    while True:
        yield from standing.new(found)
        yield None
        time.sleep(every_s)
        try:
            found = look()
        except (OSError, ValueError):
            continue


def dcgm_faults(text: str) -> Iterator[Fault]:
    """Yield the faults of a report of `dcgmi health --check --json` (DCGM 3 and 4); raises ValueError for another.

    The report is a tree of `children`, each with a `value`; below `GPU`, an index, and `Errors` are the
    systems of a device with their health, and the message in `overflow`.
    """
    body = json.loads(text).get("body") if text.strip().startswith("{") else None
    if not isinstance(body, dict) or "Overall Health" not in body:
        raise ValueError("dcgmi health prints no report: are its watches set?")
    for entity, group in body.items():
        for index, device in _children(group).items():
            for system, state in _children(_children(device).get("Errors")).items():
                severity = _DCGM_SEVERITIES.get(str(state.get("value", "")).lower())
                if severity is not None:
                    name = index if entity.startswith("GPU") else f"{entity} {index}"
                    code = "dcgm-" + re.sub(r"[^a-z0-9]+", "-", system.lower().replace(" system", "")).strip(
                        "-"
                    )
                    words = " ".join(map(str, state.get("overflow", ())))
                    yield Fault(name, code, severity, f"DCGM: {system}: {words}"[:1000])


def _children(node: Any) -> Dict[str, Any]:
    children = node.get("children") if isinstance(node, dict) else None
    return children if isinstance(children, dict) else {}


def npu_faults(device: str, text: str) -> Iterator[Fault]:
    """Yield the faults of what `npu-smi info -t health -i DEVICE` prints: its codes, else the device's health."""
    found = _NPU_HEALTH.search(text)
    severity = _NPU_SEVERITIES.get(found[1].lower()) if found else None
    if found is None or severity is None:
        return
    codes = [code.upper() for code in _NPU_CODE.findall(text)]
    message = f"npu-smi: device {device}: health {found[1]}"
    if not codes:
        yield Fault(device, f"npu-{found[1].lower()}", severity, message)
    for code in dict.fromkeys(codes):
        yield Fault(device, code, None, f"{message}, 0x{code}")
