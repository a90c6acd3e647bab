"""Looks for faults of this machine's devices until its standard input ends; tells them a JSON object a line.

A process of its own: a device that is lost can keep whoever asks for it, and nobody may hold one that is to be reset.
The words are the names of the sources, and the seconds between two looks.
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


class _Told:
    """Lines on standard output, from any thread; first, once all sources have begun, what there is of them."""

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


def _watch(name: str, every_s: float, told: _Told) -> None:
    try:
        for fault in SOURCES[name](every_s):
            told.begun(name)
            if fault is not None:
                told.fault(**fault._asdict())
    except MissingError as exc:
        told.begun(name, str(exc))
    except Exception as exc:  # a library or tool of whatever kind: the others go on
        told.begun(name, f"{type(exc).__name__}: {exc}")


def main(names: List[str], every_s: float) -> None:
    """Watch, until standard input ends: then nobody wants to know any more."""
    told = _Told(names)
    for name in names:
        threading.Thread(target=_watch, args=(name, every_s, told), daemon=True).start()
    sys.stdin.read()
    os._exit(0)  # a thread may be in a library that does not come back


if __name__ == "__main__":
    main(sys.argv[2:], float(sys.argv[1]))
