"""Warns where a run saves no checkpoint that it could resume from, or none when it is asked for one.

Owns when to warn and the text: once a phase, in the log and the journal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from prefect_ft.amounts import count
from prefect_ft.clock import PhaseClock
from prefect_ft.decide.reasons import signal_name
from prefect_ft.supervisor.launch import SavesPlan
from prefect_ft.supervisor.warner import Warner

MAX_NAMED = 3

_LOSES = "Until that is mended a failure loses all work."


class Unsaved:
    """`saves` is None where checkpoints do not matter."""

    def __init__(self, saves: SavesPlan | None, warner: Warner, clock: PhaseClock) -> None:
        self._path = saves.directory if saves is not None else ""
        self._after_s = saves.warn_after_s if saves is not None else 0.0
        self._warner, self._clock = warner, clock

    def due_in_s(self, running_since_t: float, *, has_saved: bool) -> float | None:
        """Return in how many seconds `look` has to be called; None: never."""
        if not self._after_s or has_saved or self._warner.has_warned("nothing-saved"):
            return None
        return max(0.0, running_since_t + self._after_s - self._clock.now())

    def look(self, attempt: int, running_since_t: float, *, has_saved: bool) -> None:
        """Warn if nothing has been saved for too long."""
        if self.due_in_s(running_since_t, has_saved=has_saved) == 0:
            minutes = self._after_s / 60
            text = (
                f"no checkpoint has been found in {self._path} for {minutes:.3g} min. {_LOSES} "
                "Does the command save there? Are the names known (docs/checkpoints.md#names)?"
            )
            self._warner.warn("nothing-saved", text, attempt)

    def unrecognised(self, names: Mapping[str, str], attempt: int) -> None:
        """Warn of entries that look like checkpoints and are not recognised; `names` has the reason for each."""
        if self._path and not self._warner.has_warned("unrecognised"):
            self._warner.warn("unrecognised", _text(self._path, names), attempt)

    def unhandled(self, number: int, ranks: Sequence[int], attempt: int) -> None:
        """Warn of ranks that do not handle the signal that asks for a checkpoint."""
        if not self._warner.has_warned("signal-unhandled"):
            self._warner.warn("signal-unhandled", _unhandled(signal_name(number), ranks), attempt)


def _unhandled(signal: str, ranks: Sequence[int]) -> str:
    some = ", ".join(map(str, ranks[:MAX_NAMED])) + (", …" if len(ranks) > MAX_NAMED else "")
    return (
        f"no process of {'rank' if len(ranks) == 1 else 'ranks'} {some} handles {signal} "
        "(checkpoints.on_demand.signal), so it was sent to none there: it ends a process that does not handle it. "
        "Handle it in the trainer, or ask should_checkpoint() there."
    )


def _text(path: str, names: Mapping[str, str]) -> str:
    some = "; ".join(f"{name}: {why}" for name, why in list(names.items())[:MAX_NAMED])
    more = f"; and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    pattern = pattern_of(names)
    wanted = f'checkpoints.pattern: "{pattern}"' if pattern else "checkpoints.pattern or checkpoints.layout"
    entries = count(
        len(names),
        f"entry of {path} looks like a checkpoint and does not count",
        f"entries of {path} look like checkpoints and none of them counts",
    )
    return f"{entries} ({some}{more}). {_LOSES} Set {wanted}."


def pattern_of(names: Iterable[str]) -> str | None:
    """Return the pattern of all these names, with their last number as the step; None: they share none."""
    patterns = {re.sub(r"[0-9]+(?=[^0-9]*$)", "{step}", name) for name in names}
    return patterns.pop() if len(patterns) == 1 else None
