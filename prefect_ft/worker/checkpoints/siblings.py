"""Files of one step that belong together: `optimizer_4.pt` and `model_4.pt`, `epoch_4.pdopt` and `epoch_4.pdparams`.

A checkpoint counts once it has beside it what the others have. Pure text: nothing here looks at a disk.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Mapping, Optional, Set, Tuple

from prefect_ft.worker.checkpoints.names import state_step

_ENDINGS = frozenset(("pdparams", "pdopt", "params", "states"))
"""PaddlePaddle's and MXNet's, of the two parts of a checkpoint."""

_NUMBER = re.compile(r"[0-9]{1,18}")

_Shape = str
"""A name with `*` in the place of its step."""


class Siblings:
    """The files of one directory that are named alike for each step."""

    def __init__(self, names: Iterable[str], steps: Mapping[str, int]) -> None:
        """`names` are all in the directory, `steps` those of the files that may be checkpoints by themselves."""
        self._steps = steps
        self._there: Dict[_Shape, Dict[int, str]] = {}
        """The name of each step, by shape."""
        self._states: Set[_Shape] = set()
        """The shapes of what is no checkpoint by itself."""
        self._lack: Dict[Tuple[_Shape, _Shape], Optional[int]] = {}
        for name in names:
            step = steps.get(name)
            state = state_step(name) if step is None else None
            if state is not None:
                self._states.add(_shape(name, state))
            if (known := step if step is not None else state) is not None:
                self._there.setdefault(_shape(name, known), {})[known] = name

    def has(self, name: str) -> bool:
        """Return whether a name is one of the checkpoints that it was given."""
        return name in self._steps

    def of(self, name: str) -> List[str]:
        """Return the files beside a checkpoint that belong to it."""
        step = self._steps[name]
        return [there[step] for _, there in self._beside(name) if step in there]

    def missing(self, name: str) -> Optional[_Shape]:
        """Return what every other checkpoint of its kind, since there are such files, has beside it; None: nothing."""
        step = self._steps[name]
        own = _shape(name, step)
        return next((shape for shape, _ in self._beside(name) if self._lacks(own, shape) == step), None)

    def _lacks(self, own: _Shape, shape: _Shape) -> Optional[int]:
        """Return the only step that lacks what all others have since the first that has it; None: not one alone."""
        if (own, shape) not in self._lack:
            there = self._there[shape]
            first = min(there)
            since = {step for step in self._there[own] if step >= first}
            lacking = since - there.keys()
            self._lack[own, shape] = lacking.pop() if len(lacking) == 1 and len(since) > 1 else None
        return self._lack[own, shape]

    def _beside(self, name: str) -> Iterable[Tuple[_Shape, Dict[int, str]]]:
        own = _shape(name, self._steps[name])
        return (
            (shape, there)
            for shape, there in sorted(self._there.items())
            if shape != own and (shape in self._states or _is_pair(shape, own))
        )


def _is_pair(shape: _Shape, own: _Shape) -> bool:
    """Return whether two shapes differ in their ending alone, as Paddle's do; other endings are of exports or notes."""
    (stem, _, ending), (own_stem, _, own_ending) = shape.rpartition("."), own.rpartition(".")
    return stem == own_stem and {ending.lower(), own_ending.lower()} <= _ENDINGS


def _shape(name: str, step: int) -> _Shape:
    """Return a name with `*` for its last number that is the step."""
    found = [match for match in _NUMBER.finditer(name) if int(match[0]) == step]
    return name if not found else f"{name[: found[-1].start()]}*{name[found[-1].end() :]}"
