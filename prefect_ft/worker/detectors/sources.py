"""What a source of faults is: an iterator that does its own waiting, or raises where it is not available."""

from __future__ import annotations

import shutil
import subprocess
from typing import Dict, Iterator, NamedTuple, Optional, Sequence

COMMAND_TIMEOUT_S = 30.0
"""How long a vendor's tool may take before it counts as failed."""


class Fault(NamedTuple):
    """A fault that a source has found. `severity` is the source's own; None: it follows from the code."""

    device: str
    code: str
    severity: Optional[str]
    message: str


class MissingError(Exception):
    """A source that this machine, or this container, does not have; the text says why."""


Faults = Iterator[Optional[Fault]]
"""The first item is None: the source is available. Then faults as they come, and None after each look without any."""


class Standing:
    """Faults that a tool keeps reporting: each counts once while it stands, and again when it comes back."""

    def __init__(self) -> None:
        self._before: Dict[Fault, bool] = {}

    def new(self, faults: Sequence[Fault]) -> Iterator[Fault]:
        """Yield those that did not stand the last time."""
        now = dict.fromkeys(faults, True)
        yield from (fault for fault in now if fault not in self._before)
        self._before = now


def tool(name: str) -> str:
    """Return the path of a vendor's tool; raises MissingError."""
    path = shutil.which(name)
    if path is None:
        raise MissingError(f"{name} is not installed")
    return path


def printed(words: Sequence[str]) -> str:
    """Return what a tool prints; raises OSError where it fails or takes too long."""
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise OSError(f"{words[0]} took more than {COMMAND_TIMEOUT_S:g} s") from exc
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        last = (done.stderr.decode("utf-8", "replace").strip() or output.strip()).splitlines()[-1:]
        raise OSError(f"{words[0]} exited with {done.returncode}{': ' + last[0][:200] if last else ''}")
    return output
