"""Looks for checkpoints in a thread of its own: a file system that hangs must not hang the agent."""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from prefect_ft.worker.checkpoints import Checkpoint, Finder, choose


class Answer(NamedTuple):
    """What one look found. `chosen` and `why_not` are for looks that were asked to choose."""

    purpose: str
    found: List[Checkpoint]
    chosen: Optional[Checkpoint]
    why_not: Dict[str, str]


class CheckpointWatch:
    """One checkpoint directory. `fileno()` is readable when `answers()` has something."""

    def __init__(self, settings: Dict[str, Any]) -> None:
        """`settings`: `path`, and what Finder takes: `layout`, `pattern`, `settle_s`."""
        self.directory: str = settings["path"]
        self._finder = Finder(**settings)
        self._deaths: Tuple[float, ...] = ()
        self._renamed: frozenset[str] = frozenset()
        self._asked: "queue.SimpleQueue[Tuple[str, Dict[str, Any]]]" = queue.SimpleQueue()
        self._answered: "queue.SimpleQueue[Answer]" = queue.SimpleQueue()
        self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        threading.Thread(target=self._work, name="checkpoints", daemon=True).start()

    def fileno(self) -> int:
        return self._wake_in

    def writers_died(self, *times: float) -> None:
        """Remember when writers were killed (seconds since the epoch): what they left half-done never counts."""
        self._deaths = tuple(sorted({*self._deaths, *times}))

    def renamed(self, name: str) -> None:
        """Remember that `name` was moved into place whole."""
        self._renamed |= {name}

    def look(self, purpose: str) -> None:
        """Ask for all verified checkpoints; the answer carries `purpose`."""
        self._asked.put((purpose, {}))

    def choose(self, purpose: str, limit: Optional[int], avoid: List[int]) -> None:
        """Ask for the one to resume from: the highest step up to `limit` that is not in `avoid`."""
        self._asked.put((purpose, {"limit": limit, "avoid": avoid}))

    def answers(self) -> List[Answer]:
        """Give the answers that have come since the last call, in the order of the questions."""
        os.read(self._wake_in, 4096)
        answers = []
        while not self._answered.empty():
            answers.append(self._answered.get())
        return answers

    def _work(self) -> None:
        while True:
            purpose, criteria = self._asked.get()
            found = self._finder.scan(time.time(), deaths=self._deaths, renamed=self._renamed)
            chosen = choose(found, **criteria) if criteria else None
            self._answered.put(Answer(purpose, found, chosen, self._finder.why_not() if criteria else {}))
            os.write(self._wake_out, b"!")
