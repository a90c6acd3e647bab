"""Learns what ranks import, from the first of them that is executed; the zygote can then import it for all others.

Knows when enough has been seen: the rank has passed its first step, or has imported nothing for a while,
or has ended.
"""

from __future__ import annotations

import contextlib
import os
from typing import Callable, Dict, List, Optional

from prefect_ft import heartbeat
from prefect_ft.worker.loop import Loop, now_s

PERIOD_S = 1.0
"""How often to check whether the rank has got so far."""

QUIET_S = 10.0
"""How long without an import until a rank counts as complete."""

DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "learning")
"""The directory to put on the path of the watched rank."""


class Learner:
    """Calls `on_learned(modules)` with names in the order in which their imports began, or none."""

    def __init__(self, directory: str, loop: Loop, on_learned: Callable[[List[str]], None]) -> None:
        self._path = os.path.join(directory, "imports")
        self._loop = loop
        self._on_learned = on_learned
        self._is_watching = False
        self._beat_path: Optional[str] = None
        self._first_step: Optional[int] = None
        self._size = 0
        self._grew_s = 0.0

    def watched(self, env: Dict[str, str]) -> Dict[str, str]:
        """Return the environment of the rank to watch, and start watching."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self._is_watching, self._beat_path = True, env.get("PREFECT_FT_HEARTBEAT")
        self._first_step, self._size, self._grew_s = None, 0, now_s()
        self._loop.after("learn", PERIOD_S, self._look)
        path = os.pathsep.join(part for part in (DIRECTORY, env.get("PYTHONPATH")) if part)
        return {**env, "PYTHONPATH": path, "PREFECT_FT_IMPORTS": self._path}

    def ended(self) -> None:
        """Finish with what has been seen: the rank has ended. Idempotent."""
        if self._is_watching:
            self._finish()

    def _look(self) -> None:
        if not self._is_watching:
            return
        with contextlib.suppress(OSError):
            size = os.path.getsize(self._path)
            if size != self._size:
                self._size, self._grew_s = size, now_s()
        if self._size and (self._has_stepped() or now_s() - self._grew_s >= QUIET_S):
            self._finish()
        else:
            self._loop.after("learn", PERIOD_S, self._look)

    def _has_stepped(self) -> bool:
        """Return whether the rank has reported two different steps, so it has completed one."""
        beat = None
        with contextlib.suppress(OSError):
            beat = heartbeat.read(self._beat_path or "")
        if beat is None or beat.step is None:
            return False
        if self._first_step is None:
            self._first_step = beat.step
        return beat.step != self._first_step

    def _finish(self) -> None:
        self._is_watching = False
        self._loop.drop("learn")
        names: List[str] = []
        with contextlib.suppress(OSError), open(self._path, encoding="utf-8", errors="replace") as file:
            names = list(dict.fromkeys(file.read().split("\n")[:-1]))
        self._on_learned(names)
