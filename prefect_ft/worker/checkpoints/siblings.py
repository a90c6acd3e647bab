"""Files of one step that belong together: `optimizer_4.pt` and `model_4.pt`, `epoch_4.pdopt` and `epoch_4.pdparams`.

A checkpoint counts once it has beside it what the others have. What goes with `model.pt`, which is overwritten, is what
is overwritten beside it: `optimizer.pt`. Pure text: nothing here looks at a disk.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import Collection, Dict, List, Mapping, Optional, Set

from prefect_ft.worker.checkpoints.names import OF_A_RANK, goes_with, state_step

_ENDINGS = ("params", "pdopt", "pdparams", "states")
"""PaddlePaddle's and MXNet's, of the two parts of a checkpoint; other endings are of exports or notes."""

_NUMBER = re.compile(rf"({OF_A_RANK.pattern})|[0-9]+", re.IGNORECASE)
_DIGIT = re.compile(r"[0-9]")

_Shape = str
"""A name with `*` in the place of each number but a rank's: its step, and an epoch or a loss."""


class Siblings:
    """The files of one directory that are named alike for each step."""

    def __init__(
        self, names: Collection[str], steps: Mapping[str, int], overwritten: Collection[str] = ()
    ) -> None:
        """`names` are all in the directory, `steps` those of the files that may be checkpoints by themselves.

        `overwritten` are those files without a step that may be.
        """
        self._steps = steps
        plain = [name for name in names if not _DIGIT.search(name)] if overwritten else []
        self._overwritten = {own: [name for name in plain if goes_with(name, own)] for own in overwritten}
        self._there: Dict[_Shape, Dict[int, str]] = {}
        """The name of each step, by shape."""
        self._states: Set[_Shape] = set()
        """The shapes of what is no checkpoint by itself."""
        self._states_of: Dict[int, List[str]] = {}
        """The names of what is no checkpoint by itself, by step."""
        self._lacking: Dict[_Shape, Dict[int, _Shape]] = {}
        for name in names:
            step = steps.get(name)
            state = state_step(name) if step is None else None
            if state is not None:
                self._states.add(_shape(name))
                self._states_of.setdefault(state, []).append(name)
            if (known := step if step is not None else state) is not None:
                self._there.setdefault(_shape(name), {})[known] = name

    def has(self, name: str) -> bool:
        """Return whether a name is one of the checkpoints that it was given."""
        return name in self._steps or name in self._overwritten

    def of(self, name: str) -> List[str]:
        """Return the files beside a checkpoint that belong to it."""
        if name in self._overwritten:
            return self._overwritten[name]
        step = self._steps[name]
        pairs = (self._there[shape].get(step) for shape in self._pairs(_shape(name)))
        return [*self._states_of.get(step, ()), *(pair for pair in pairs if pair is not None)]

    def missing(self, name: str) -> Optional[_Shape]:
        """Return what every other checkpoint of its kind, since there are such files, has beside it; None: nothing."""
        if name in self._overwritten:
            return None
        own = _shape(name)
        if own not in self._lacking:
            self._lacking[own] = self._lacking_of(own)
        return self._lacking[own].get(self._steps[name])

    def _lacking_of(self, own: _Shape) -> Dict[int, _Shape]:
        """Return each step that alone lacks what all others have since the first that has it.

        Files of which some have no checkpoint of this shape are others': their number may be a rank's.
        """
        mine = self._there[own]
        steps = sorted(mine)
        lacking: Dict[int, _Shape] = {}
        for shape in sorted([*self._states, *self._pairs(own)] if len(steps) > 1 else ()):
            there, first = self._there[shape], bisect_left(steps, min(self._there[shape]))
            if there.keys() <= mine.keys() and len(steps) - first == len(there) + 1:
                lacking.update({step: shape for step in steps[first:] if step not in there})
        return lacking

    def _pairs(self, own: _Shape) -> List[_Shape]:
        """Return the shapes that differ from this one in their ending alone, as Paddle's do."""
        stem, _, ending = own.rpartition(".")
        shapes = (f"{stem}.{other}" for other in _ENDINGS if other != ending and ending in _ENDINGS)
        return [shape for shape in shapes if shape in self._there]


def _shape(name: str) -> _Shape:
    return _NUMBER.sub(lambda match: match[1] or "*", name)
