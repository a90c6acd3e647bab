"""Looks for faults of this machine's devices until its standard input ends; prints each as a line of JSON.

A process of its own: a query of a lost device may never return, and a device can only be reset while it is unused.
Its arguments are the seconds between two looks, and the names of the sources.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any, Callable, Dict, List

from prefect_ft.worker.detectors import kernel_log, nvml, vendor_tools
from prefect_ft.worker.detectors.sources import Faults, MissingError

SOURCES: Dict[str, Callable[[float], Faults]] = {
    "nvml": nvml.faults,
    "dcgm": vendor_tools.dcgm,
    "kernel": lambda _: kernel_log.faults(),
    "npu": vendor_tools.npu,
}


class _Output:
    """Lines on standard output, from any thread; the first, once all sources have begun, says which are available."""

    def __init__(self, names: List[str]) -> None:
        self._lock = threading.Lock()
        self._open = set(names)
        self._why_not: Dict[str, str] = {}
        self._by: List[str] = []

    def begun(self, name: str, why_not: str = "") -> None:
        with self._lock:
            if name not in self._open:
                return
            self._open.discard(name)
            if why_not:
                self._why_not[name] = why_not
            else:
                self._by.append(name)
            if not self._open:
                self._say({"by": sorted(self._by), "why_not": self._why_not})

    def fault(self, **fields: Any) -> None:
        with self._lock:
            self._say({"fault": fields})

    def _say(self, what: Dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()


def _watch(name: str, every_s: float, output: _Output) -> None:
    try:
        for fault in SOURCES[name](every_s):
            output.begun(name)
            if fault is not None:
                output.fault(**fault._replace(device=nvml.number_at(fault.device))._asdict())
    except MissingError as exc:
        output.begun(name, str(exc))
    except Exception as exc:  # any error of a library or tool: the other sources go on
        output.begun(name, f"{type(exc).__name__}: {exc}")


def main(names: List[str], every_s: float) -> None:
    """Watch until standard input ends: then the agent has stopped this process, or is gone."""
    output = _Output(names)
    for name in names:
        threading.Thread(target=_watch, args=(name, every_s, output), daemon=True).start()
    sys.stdin.read()
    os._exit(0)  # a thread may be in a library that does not come back


if __name__ == "__main__":
    main(sys.argv[2:], float(sys.argv[1]))
