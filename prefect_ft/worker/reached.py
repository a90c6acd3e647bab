"""The processes that a signal to process groups reaches, for as long as they run."""

from __future__ import annotations

import os
from typing import Container, List, Optional, Tuple

from prefect_ft.worker import dispositions, processes


class Reached:
    """Those that got one signal or several."""

    def __init__(self) -> None:
        self._found: List[Tuple[int, int]] = []
        """Their pids, each with when it started."""

    def note(self, groups: Container[int], number: int) -> None:
        """Note what a signal to these process groups will reach: all in them that does not ignore it.

        Call it before the signal is sent: a handler may ignore the next one.
        """
        for pid in processes.descendants(os.getpid()):
            since = processes.started(pid)
            if since is not None and processes.group(pid) in groups and not dispositions.ignores(pid, number):
                self._found.append((pid, since))

    def forget(self) -> None:
        """Forget them."""
        self._found.clear()

    def one_living(self) -> Optional[processes.Held]:
        """Return one that still runs, which the caller is to close; None: all have ended."""
        while self._found:
            pid, since = self._found[-1]
            held = processes.hold(pid, lambda pid, since=since: processes.started(pid) == since)  # type: ignore[misc]
            if held is not None:
                return held
            self._found.pop()
        return None
