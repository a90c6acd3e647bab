"""Steps at which failures come back, and the windows of steps that later attempts skip.

Owns when a failure is bound to its step, and where a window is. Knows no rule: the rules decide which failures open
a window.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from prefect_ft.decide.classify.exits import asks_for_other_hardware
from prefect_ft.model import FailureClass, Incident, Window

BINDING: frozenset[FailureClass | None] = frozenset(("data", "numeric"))
"""The classes of failures that a step can cause."""


class _At(NamedTuple):
    """Where an attempt of a class failed, and the step from which it had started; None: from scratch."""

    failure_class: FailureClass | None
    reached: int
    started_from: int | None


@dataclass(slots=True)
class Skipping:
    """Bound failures and windows of one phase while its history is folded.

    `is_bound` is that of the last incident that ended an attempt. `windows` are in order and do not touch.
    """

    windows: tuple[Window, ...] = ()
    since_progress: int = 0
    in_phase: int = 0
    is_bound: bool = False
    _earlier: list[_At] = field(default_factory=list)

    def end_attempt(self, incident: Incident, *, progress: bool, started_from: int | None) -> None:
        """Judge a failure by the earlier ones since progress; progress forgets them first."""
        if progress:
            self._earlier.clear()
            self.since_progress = 0
        self.is_bound = False
        is_open = asks_for_other_hardware(incident)  # according to the trainer itself it is not known yet
        is_binding = incident.kind == "exit" and incident.failure_class in BINDING and not is_open
        if is_binding and incident.reached is not None:
            at = _At(incident.failure_class, incident.reached, started_from)
            self.is_bound = any(_is_same(earlier, at) for earlier in self._earlier)
            self._earlier.append(at)

    def window(self, incident: Incident, length: int, start: int) -> Window | None:
        """Return the window before the step that an incident reached, for an attempt that starts from `start`.

        `length` is that of the first window since progress, in steps; each further one is twice as long. None if there
        is no step to skip.
        """
        if incident.reached is None:
            return None
        last = incident.reached + (incident.reached_every or 1)
        first = max(start + 1, last + 1 - length * 2**self.since_progress)
        return (first, last) if first <= last else None

    def open(self, windows: Iterable[Window]) -> None:
        """Note a restart that skips more steps; `windows` are all that it skips."""
        self.since_progress += 1
        self.in_phase += 1
        self.windows = merged((*self.windows, *windows))


def _is_same(earlier: _At, now: _At) -> bool:
    """Return whether two failures show that their step is to blame, rather than the state they started from."""
    if (earlier.failure_class, earlier.reached) != (now.failure_class, now.reached):
        return False
    return now.failure_class == "data" or now.started_from is None or earlier.started_from != now.started_from


def merged(windows: Iterable[Window]) -> tuple[Window, ...]:
    """Return windows in order, those that overlap or touch made one."""
    result: list[Window] = []
    for first, last in sorted(windows):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        else:
            result.append((first, last))
    return tuple(result)
