"""Checkpoints of which each worker's own disk has a part: which are complete, by the agents' reports on the parts.

A step is complete where every worker has its part, files missing in one part are in another one, and all parts were
written in one attempt, by workers on these systems. A fold over reports; reads no file itself.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

from prefect_ft.journal.records import AttemptLine, Line
from prefect_ft.supervisor.event_parts import Verified
from prefect_ft.supervisor.events import Checkpoints
from prefect_ft.worker.protocol import Token

MAX_NAMED = 3
"""How many of the files that no worker has are named."""


class Parts:
    """The reports of a phase's agents on the parts on their systems. Times are seconds since the epoch."""

    def __init__(self) -> None:
        self.placement: tuple[str, ...] = ()
        """The systems of the workers, by worker."""
        self._at: dict[str, dict[int, Verified]] = {}
        self._begun: list[tuple[float, tuple[str, ...]]] = []
        """When attempts began, and where their workers were."""
        self._whole: dict[int, Verified] = {}
        """What has been reported as whole."""
        self._why_not: dict[int, str] = {}

    def begin(self, placement: Sequence[str], at_s: float) -> None:
        """Record that an attempt begins: parts written from now on are its own."""
        self.placement = tuple(placement)
        self._begun.append((at_s, self.placement))

    def recall(self, lines: Iterable[Line], zero_s: float) -> None:
        """Load the attempts from a journal; `zero_s` is when the phase began."""
        self._begun = [
            (zero_s + (line.begun_t or line.t or 0.0), line.placement)
            for line in lines
            if isinstance(line, AttemptLine)
        ]
        self.placement = self._begun[-1][1] if self._begun else self.placement

    def take(self, system: str, event: Checkpoints) -> None:
        """Take the parts that an agent has found on its system, and those that are gone."""
        parts = self._at.setdefault(system, {})
        parts.update({part.step: part for part in event.new})
        for step in event.gone or ():
            parts.pop(step, None)

    def news(self, token: Token) -> Checkpoints:
        """Return what became complete since the last call, and what is no longer, as an event with this token."""
        whole = {step: each for step in self._steps() if (each := self._joined(step)) is not None}
        new = tuple(each for step, each in sorted(whole.items()) if self._whole.get(step) != each)
        gone = tuple(sorted(self._whole.keys() - whole.keys()))
        self._whole = whole
        return Checkpoints(token=token, new=new, last=max(whole, default=None), gone=gone)

    @property
    def whole(self) -> tuple[int, ...]:
        """The steps that are known to be complete."""
        return tuple(sorted(self._whole))

    def marks(self, system: str) -> list[dict[str, Any]]:
        """Return the known parts on a system, in the form that its agent expects."""
        known = (part for _, part in sorted(self._at.get(system, {}).items()))
        names = ("step", "path", "counted", "size", "mtime", "device", "inode")
        marks = ({name: getattr(part, name) for name in names} for part in known)
        return [mark for mark in marks if None not in mark.values()]

    def why_not(self) -> dict[str, str]:
        """Return why steps with some parts are incomplete, by name, the newest first."""
        steps = sorted(self._steps() - self._whole.keys(), reverse=True)
        return {self._name(step): self._objection(step) or "" for step in steps}

    # -- one step -----------------------------------------------------------------------------------

    def _steps(self) -> set[int]:
        return {step for system in self.placement for step in self._at.get(system, {})}

    def _parts(self, step: int) -> list[Verified | None]:
        return [self._at.get(system, {}).get(step) for system in self.placement]

    def _name(self, step: int) -> str:
        return next(PurePath(part.path).name for part in self._parts(step) if part is not None)

    def _joined(self, step: int) -> Verified | None:
        """Return the parts of a step as one checkpoint, at worker 0's path; None: it is incomplete."""
        parts = [part for part in self._parts(step) if part is not None]
        if self._objection(step) is not None or not parts:
            return None
        first = parts[0]
        return Verified(
            step=step,
            path=first.path,
            mtime=max(part.mtime or 0.0 for part in parts),
            size=sum(part.size or 0 for part in parts),
            device=first.device,
            inode=first.inode,
            needs=None,
            has=None,
        )

    def _objection(self, step: int) -> str | None:
        """Return why a step is incomplete; None: it is complete."""
        parts = dict(enumerate(self._parts(step)))
        lacking = [worker for worker, part in parts.items() if part is None]
        if lacking:
            return f"worker {lacking[0]} has no whole part of it on {self.placement[lacking[0]]}"
        there = [part for part in parts.values() if part is not None]
        if any(part.counted for part in there):
            return "nothing tells its step: ranks have to report it, or its name has to hold it"
        return self._gap(there) or self._mixture(there)

    def _gap(self, parts: Sequence[Verified]) -> str | None:
        has = {name for part in parts for name in part.has or ()}
        missing = sorted({name for part in parts for name in part.needs or ()} - has)
        if not missing:
            return None
        more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
        return f"no worker has {', '.join(missing[:MAX_NAMED])}{more}"

    def _mixture(self, parts: Sequence[Verified]) -> str | None:
        """Return why parts do not belong together: not written in one attempt, by these workers on these systems."""
        attempts = {bisect.bisect_right(self._begun, part.mtime or 0.0, key=_began) for part in parts}
        if len(attempts) > 1:
            return "its parts were written in different attempts"
        (attempt,) = attempts
        writers = self._begun[attempt - 1][1] if attempt else self.placement
        if writers != self.placement:
            return f"it was written by workers on {', '.join(writers)}, now they are on {', '.join(self.placement)}"
        return None


def _began(attempt: tuple[float, tuple[str, ...]]) -> float:
    return attempt[0]
