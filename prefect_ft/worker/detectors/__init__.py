"""Faults of this machine's devices, found while ranks run without their help.

By NVIDIA's library and its DCGM, the kernel's log, and Ascend's tool. Owns the detecting
process, one for each attempt; what a fault means is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from prefect_ft.worker import rank_environment
from prefect_ft.worker.loop import Loop
from prefect_ft.worker.processes import Held

KINDS = ("nvml", "dcgm", "kernel", "npu")
"""The sources that there are."""

_READ = 1 << 16
_LONGEST = 1 << 20
"""Bytes without a newline after which a process's output is given up as unusable."""


class Detectors:
    """`begin` and `end` frame an attempt."""

    def __init__(
        self,
        kinds: Sequence[str],
        every_s: float,
        loop: Loop,
        *,
        on_fault: Callable[..., None],
        on_begun: Callable[..., None],
    ) -> None:
        """`on_fault(t_ns, report)` is called for each; `on_begun(by, why_not)` once an attempt.

        A report has `device`, `code`, `severity` and `message`; `t_ns` is of CLOCK_BOOTTIME.
        """
        self._words = [sys.executable, "-m", __name__, str(every_s), *kinds]
        self._is_wanted = bool(kinds)
        self._loop = loop
        self._on_fault, self._on_begun = on_fault, on_begun
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._held: Optional[Held] = None
        self._killed: List[subprocess.Popen[bytes]] = []
        """Those not reaped yet: a lost device may keep them in the kernel for good."""
        self._has_begun = False
        self._unread = b""

    def begin(self, visible: Optional[str]) -> None:
        """Look for faults from now on; `visible` is the ranks' CUDA_VISIBLE_DEVICES, if they have one."""
        self.end()
        self._has_begun = False
        if not self._is_wanted:
            return
        try:
            process = subprocess.Popen(
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=rank_environment.of_ranks({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}),
                start_new_session=True,
            )
        except OSError as exc:
            self._begun(by=[], why_not={"process": str(exc.strerror or exc)})
            return
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            self._held = Held(process.pid)
        except OSError as exc:
            process.stdout.close()
            process.stdin.close()  # by which it ends
            self._killed.append(process)
            self._begun(by=[], why_not={"process": str(exc.strerror or exc)})
            return
        self._process = process
        os.set_blocking(process.stdout.fileno(), False)
        self._loop.watch(process.stdout, lambda _: self._read())

    def end(self) -> None:
        """Stop looking, and release the devices. Idempotent."""
        process, self._process, self._unread = self._process, None, b""
        if process is None:
            return
        assert process.stdout is not None
        assert process.stdin is not None
        self._loop.forget(process.stdout)
        if self._held is not None:
            self._held.send(signal.SIGKILL)
            self._held.close()
            self._held = None
        process.stdout.close()
        with contextlib.suppress(OSError):
            process.stdin.close()
        self._killed = [each for each in (*self._killed, process) if each.poll() is None]

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        data = os.read(self._process.stdout.fileno(), _READ)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._take(line)
        if not data or len(self._unread) > _LONGEST:
            self._has_ended()

    def _has_ended(self) -> None:
        """Note that the process has ended by itself."""
        self.end()
        if not self._has_begun:
            self._begun(by=[], why_not={"process": "it has ended"})

    def _begun(self, by: List[str], why_not: Dict[str, str]) -> None:
        self._has_begun = True
        self._on_begun(by=by, why_not=why_not)

    def _take(self, line: bytes) -> None:
        try:
            message: Any = json.loads(line)
            fault, begun = message.get("fault"), message if "by" in message else None
        except (ValueError, AttributeError):
            return
        if fault is not None:
            self._on_fault(t_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME), report=fault)
        elif begun is not None:
            self._begun(begun["by"], begun["why_not"])
