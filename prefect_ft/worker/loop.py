"""The agent's event loop: descriptors and named timers, each with what it calls. One thread, no polling."""

from __future__ import annotations

import selectors
import time
from typing import Any, Callable, Dict, Tuple

MAX_SLEEP_S = 3600.0
"""The longest sleep: the system calls have a limit, what users configure has none."""


def now_s() -> float:
    """Return the time since boot in seconds, including time in which the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Loop:
    """Calls `call(events)` for a descriptor that is ready and `call()` for a timer that is due."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: Dict[str, Tuple[float, Callable[[], None]]] = {}
        self._has_changed = False
        """Whether the set of watched descriptors has changed since the last events."""

    def watch(self, source: Any, call: Callable[[int], None], events: int = selectors.EVENT_READ) -> None:
        """Call when `source`, a descriptor or an object with `fileno()`, is ready; replaces an earlier call."""
        self._has_changed = True
        if source in self._selector.get_map():
            self._selector.modify(source, events, call)
        else:
            self._selector.register(source, events, call)

    def forget(self, source: Any) -> None:
        """Stop watching; must be called before the descriptor is closed. Idempotent."""
        self._has_changed = True
        if source in self._selector.get_map():
            self._selector.unregister(source)

    def after(self, name: str, delay_s: float, call: Callable[[], None]) -> None:
        """Call once, `delay_s` from now; a timer of that name that is already set stays."""
        self._timers.setdefault(name, (now_s() + delay_s, call))

    def drop(self, name: str) -> None:
        """Unset a timer. Idempotent."""
        self._timers.pop(name, None)

    def is_set(self, name: str) -> bool:
        """Return whether a timer of that name is waiting."""
        return name in self._timers

    def step(self) -> None:
        """Wait for the next events or the next timer and make the calls."""
        ready = self._selector.select(self._until_next_timer())
        self._has_changed = False
        for key, events in ready:
            if not self._has_changed or self._is_current(key):
                key.data(events)
        self._run_timers()

    def _is_current(self, key: selectors.SelectorKey) -> bool:
        """Whether this descriptor is still watched after the earlier calls, for the same source."""
        current = self._selector.get_map().get(key.fd)
        return current is not None and current.data == key.data

    def _until_next_timer(self) -> float:
        next_due = min((due for due, _ in self._timers.values()), default=float("inf"))
        return min(max(0.0, next_due - now_s()), MAX_SLEEP_S)

    def _run_timers(self) -> None:
        now = now_s()
        for name, timer in list(self._timers.items()):
            due, call = timer
            if due <= now and self._timers.get(name) is timer:
                del self._timers[name]
                call()
