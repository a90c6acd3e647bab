"""Whether the main thread progresses: what it reports by `ping`, and that it runs Python at all.

Owns the two clocks. A sign of life is requested by a pending call of the interpreter, which the main thread
makes between two bytecodes: a POSIX semaphore is posted, so that no Python code runs at an unexpected place.
"""

from __future__ import annotations

import ctypes
import time
from typing import Optional

_SEMAPHORE_BYTES = 64


class Progress:
    """The progress of one rank. `step` is the highest that it reported in any iteration; None: none."""

    def __init__(self) -> None:
        self.step: Optional[int] = None
        self._semaphore = ctypes.create_string_buffer(_SEMAPHORE_BYTES)
        self._libc = ctypes.CDLL(None)
        self._libc.sem_init(self._semaphore, 0, 0)
        self._post = ctypes.cast(self._libc.sem_post, ctypes.c_void_p)
        self._is_asked = False
        self.is_watched = True
        self.begin()

    def begin(self) -> None:
        """Reset: the function is entered."""
        self._alive_s = time.monotonic()
        self._pinged_s: Optional[float] = None
        self._pinged_step: Optional[int] = None

    def ping(self, step: Optional[int] = None) -> None:
        """Report progress; a step that is not above the last one is ignored."""
        if step is not None:
            last = self._pinged_step
            if last is not None and step <= last:
                return
            self._pinged_step = step
            if self.step is None or step > self.step:
                self.step = step
        self._pinged_s = time.monotonic()

    def unwatched(self) -> None:
        """Suspend the time limits until `watched`."""
        self.is_watched = False

    def watched(self) -> None:
        """Expect progress again, from now on."""
        self._alive_s = time.monotonic()
        if self._pinged_s is not None:
            self._pinged_s = self._alive_s
        self.is_watched = True

    def last_s(self) -> float:
        """Return when there was last progress, by the monotonic clock; requests another sign of life."""
        if self._libc.sem_trywait(self._semaphore) == 0:
            self._alive_s = time.monotonic()
            self._is_asked = False
        if not self._is_asked:
            self._is_asked = ctypes.pythonapi.Py_AddPendingCall(self._post, self._semaphore) == 0
        return self._alive_s if self._pinged_s is None else min(self._alive_s, self._pinged_s)
