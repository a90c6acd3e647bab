"""Faults in the kernel's log: Xid and SXid of NVIDIA's drivers, PCIe, memory, disks, file systems, network cards.

Read from /dev/kmsg (Documentation/ABI/testing/dev-kmsg: a record a read, `priority,sequence,time,flags;text`), else
by `journalctl`. Records from before the start are ignored.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
from typing import Iterator

from prefect_ft.worker.detectors.lines import in_kernel_log
from prefect_ft.worker.detectors.sources import Fault, Faults, MissingError

KMSG = "/dev/kmsg"
_RECORD = 8192
"""The longest record that the kernel hands out."""

_JOURNAL = ("journalctl", "--dmesg", "--follow", "--lines=0", "--output=cat")


def faults(path: str = KMSG) -> Faults:
    """Yield the faults that the kernel logs from now on; raises MissingError where its log cannot be read."""
    lines = _records(path) if os.access(path, os.R_OK) else _journal(f"{path} cannot be read")
    for line in lines:
        found = False
        for named in in_kernel_log(line):
            found = True
            yield Fault(*named, line[:1000])
        if not found:
            yield None


def _records(path: str) -> Iterator[str]:
    try:
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(log, 0, os.SEEK_END)
    except OSError as exc:
        yield from _journal(f"{path}: {exc.strerror}")
        return
    yield ""
    while True:
        select.select([log], [], [])
        try:
            record = os.read(log, _RECORD)
        except BlockingIOError:
            continue
        except BrokenPipeError:  # records were overwritten before they were read: continue with the oldest
            continue
        yield record.decode("utf-8", "replace").partition(";")[2].partition("\n")[0]


def _journal(instead_of: str) -> Iterator[str]:
    if shutil.which(_JOURNAL[0]) is None:
        raise MissingError(f"{instead_of}, and journalctl is not installed")
    words = list(_JOURNAL)
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        yield ""
        for line in process.stdout:
            yield line.decode("utf-8", "replace").rstrip("\n")
    raise MissingError(f"{instead_of}, and journalctl ended with {process.returncode}")
