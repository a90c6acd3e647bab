"""Warns where a run saves no checkpoint that it could resume from, or none when it is asked for one.

Owns when to warn and the text: once a phase, in the log and the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prefect_ft.amounts import count
from prefect_ft.clock import PhaseClock
from prefect_ft.decide.reasons import signal_name
from prefect_ft.supervisor.launch import SavesPlan
from prefect_ft.supervisor.step_pattern import step_pattern
from prefect_ft.supervisor.warner import Warner
from prefect_ft.worker.checkpoints.names import UNKNOWN_NAME, UsualNames

MAX_NAMED = 3

_GIVEN_NONE = (
    'Until that is mended a restart is given no checkpoint of this phase ("from scratch"): '
    "a script that looks for its own checkpoints continues from them; any other starts over."
)


class Unsaved:
    """`saves` is None where checkpoints do not matter."""

    def __init__(self, saves: SavesPlan | None, warner: Warner, clock: PhaseClock) -> None:
        self._saves = saves
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
                f"no checkpoint has been found in {self._path} for {minutes:.3g} min. {_GIVEN_NONE} "
                "Does the command save there? Are the names known (docs/checkpoints.md#names)?"
            )
            self._warner.warn("nothing-saved", text, attempt)

    def unrecognised(self, names: Mapping[str, str], attempt: int, *, has_saved: bool) -> None:
        """Warn of entries that look like checkpoints and are not recognised; `names` has the reason for each."""
        saves = self._saves
        if saves is not None and not has_saved and not self._warner.has_warned("unrecognised"):
            self._warner.warn("unrecognised", _text(saves, names), attempt)

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


def _text(saves: SavesPlan, names: Mapping[str, str]) -> str:
    some = "; ".join(f"{name}: {why}" for name, why in list(names.items())[:MAX_NAMED])
    more = f"; and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    entries = count(
        len(names),
        f"entry of {saves.directory} looks like a checkpoint and does not count",
        f"entries of {saves.directory} look like checkpoints and none of them counts",
    )
    return f"{entries} ({some}{more}). {_GIVEN_NONE} {_advice(saves, names)}"


def _advice(saves: SavesPlan, names: Mapping[str, str]) -> str:
    """Return what to set where the reasons show it, else where to read about them."""
    pattern = step_pattern(names) if {*names.values()} == {UNKNOWN_NAME} else None
    if pattern is not None:
        return f'If the number that differs is the step, set checkpoints.pattern: "{pattern}".'
    if UNKNOWN_NAME in names.values():
        return (
            "docs/checkpoints.md#names says which names count. checkpoints.pattern can name others: with a step in "
            "the name, or one file that is overwritten."
        )
    can_copy = not (saves.keeps_copies or saves.is_local or saves.look is not None)
    if can_copy and all(_is_overwritten(name) for name in names):
        return (
            "checkpoints.keep_copies: true keeps the last whole versions of a file that is overwritten "
            "(docs/checkpoints.md#one-file-that-is-overwritten)."
        )
    return "docs/checkpoints.md says what counts."


def _is_overwritten(name: str) -> bool:
    """Return whether a name is of a file that is overwritten with each checkpoint, and copied if that is wanted."""
    has_number = any(map(str.isdigit, name))  # ckpt_100.pt is of one step
    return not has_number and "/" not in name and UsualNames().overwritten(name) is not None
