"""Hands calls from other threads to the supervisor's thread, which is the only one that acts."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable


class Calls:
    """`fileno()` is readable while calls are pending. `soon` is thread-safe, the rest belongs to one thread."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def soon(self, call: Callable[[], None]) -> None:
        """Have `call` made as soon as the supervisor waits for events; ignored once this is closed."""
        self._waiting.append(call)
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed
            os.eventfd_write(self._event, 1)

    def make(self) -> None:
        """Make the pending calls, in their order."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        while self._waiting:
            self._waiting.popleft()()

    def fileno(self) -> int:
        return self._event

    def close(self) -> None:
        """Drop pending calls. Idempotent."""
        event, self._event = self._event, -1  # the number may be reused
        if event >= 0:
            os.close(event)
        self._waiting.clear()
