"""The state of a phase's checkpoints: a fold over the agents' reports. Reads no file itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from prefect_ft.amounts import save_noun
from prefect_ft.journal.records import AttemptLine, CheckpointLine, IncidentLine, Line
from prefect_ft.supervisor.event_parts import Verified
from prefect_ft.supervisor.events import Checkpoints
from prefect_ft.worker.checkpoints import copies

Identity = tuple[str, float | None]
"""Path and time of writing: the same again is a repeated report, not a new checkpoint."""


class Save(NamedTuple):
    """One verified checkpoint, as an agent or the journal describes it.

    `mtime` is in seconds since the epoch, `size` in bytes; None: journals of earlier versions do not say.
    """

    path: str
    mtime: float | None = None
    size: int | None = None
    device: int | None = None
    inode: int | None = None
    counted: bool = False

    @classmethod
    def of(cls, item: Verified) -> Save:
        """Return the checkpoint that an agent has verified."""
        return cls(item.path, item.mtime, item.size, item.device, item.inode, item.counted)

    @property
    def identity(self) -> Identity:
        return self.path, self.mtime


def _verified(line: CheckpointLine) -> Verified:
    """Return a line of the journal as the agent's report that it records."""
    return Verified(
        step=line.step,
        path=line.path or "",
        mtime=line.mtime,
        counted=bool(line.counted),
        size=line.size,
        device=line.device,
        inode=line.inode,
        needs=None,
        has=None,
    )


def _is_copy(path: str) -> bool:
    return PurePath(path).parent.name == copies.DIRECTORY


class Saves:
    """The verified checkpoints of a phase, by step, and what the attempt that runs has added."""

    def __init__(self) -> None:
        self._whole: dict[int, Save] = {}
        self._step_at: dict[str, int] = {}
        """By path, the step that was reported last."""
        self._reported: dict[int, Identity] = {}
        """All that has ever been reported, by step, still good or not."""
        self._fences: list[tuple[float, float]] = []
        self._ignored: dict[int, Save] = {}
        """Steps that lost ranks wrote, or may have written: they do not count as progress."""
        self._set_aside: dict[int, Identity | None] = {}
        self.newest_s = 0.0
        """When the newest one was written that was new when reported, since the epoch."""
        self._highest_step: int | None = None
        self._is_counted: bool | None = None
        """Whether no known checkpoint states its step, so that all steps are counted; None: none is known."""
        self._seen_step: int | None = None
        self._baseline_step: int | None = None

    def begin_attempt(self) -> None:
        """Start to measure progress anew: checkpoints verified so far do not count for the new attempt."""
        self._baseline_step, self._seen_step = self._highest_step, None

    def report(self, event: Checkpoints) -> list[Verified]:
        """Take the checkpoints that an agent has verified, and those that are no longer good.

        Return the new ones: another worker's agent, or an earlier one, may have reported the same.
        """
        new = self._learn(event.new)
        for step in self._gone(event):
            self._whole.pop(step, None)
        return new

    def _learn(self, verified: Iterable[Verified]) -> list[Verified]:
        """Take verified checkpoints; return the new ones."""
        accepted = [item for item in verified if not self._ignore_if_fenced(item)]
        new = [
            item
            for item in accepted
            if self._reported.get(item.step) != Save.of(item).identity and not _is_copy(item.path)
        ]
        self.newest_s = max([self.newest_s, *(item.mtime for item in new if item.mtime is not None)])
        for item in accepted:
            self._take(item.step, Save.of(item))
        return new

    def _take(self, step: int, save: Save) -> None:
        """Take a verified checkpoint; a new version of a file replaces the earlier one."""
        before = self._step_at.get(save.path, step)
        if before in self._whole and self._whole[before].path == save.path:  # and not a copy of it
            del self._whole[before]
        self._step_at[save.path] = step
        self._ignored.pop(step, None)
        self._whole[step], self._reported[step] = save, save.identity
        self._highest_step = max(step, self._highest_step or 0)
        self._is_counted = save.counted and self._is_counted is not False
        self._seen_step = max(step, self._seen_step or 0)

    def _gone(self, event: Checkpoints) -> list[int]:
        """Return the steps that are no longer good; agents of earlier versions name only the last good one."""
        if event.gone is not None:
            return list(event.gone)
        return [step for step in self._whole if event.last is None or step > event.last]

    def fence(self, since_s: float, until_s: float) -> None:
        """Ignore checkpoints written in this time, in seconds since the epoch.

        Lost ranks may keep writing, and their checkpoints cannot be told from others.
        """
        self._fences.append((since_s, until_s))

    def distrust(self, from_step: int, until_s: float) -> tuple[float, float] | None:
        """Ignore checkpoints from a step on; return the time in which they were written. None: there are none."""
        late = [step for step in self._whole if step >= from_step]
        known = [mtime for step in late if (mtime := self._whole[step].mtime) is not None]
        self._ignore(late)
        if self._seen_step is not None and self._seen_step >= from_step:
            below = [step for step in self._whole if step > (self._baseline_step or 0)]
            self._seen_step = max(below, default=None)
        if not known:
            return None
        since_s = math.floor(1000 * min(known)) / 1000
        self.fence(since_s, until_s)
        return since_s, until_s

    def _forget_written(self, since_s: float, until_s: float) -> None:
        """Ignore known checkpoints that were written in this time: they were known when the fence was set."""
        times = {step: save.mtime for step, save in self._whole.items()}
        self._ignore(
            step for step, mtime in times.items() if mtime is not None and since_s <= mtime <= until_s
        )

    def _ignore(self, steps: Iterable[int]) -> None:
        for step in steps:
            self._ignored[step] = self._whole.pop(step)

    def _ignore_if_fenced(self, item: Verified) -> bool:
        """Ignore a checkpoint written within a fence, which has replaced an earlier one; return whether it was."""
        step, written_s = item.step, item.mtime
        if written_s is None or not any(since <= written_s <= until for since, until in self._fences):
            return False
        self._whole.pop(step, None)
        self._ignored[step] = Save.of(item)
        return True

    def trust(self, since_s: float) -> None:
        """Count checkpoints written since then in spite of a fence: a completed attempt wrote them itself."""
        for step, save in dict(self._ignored).items():
            if save.mtime is not None and save.mtime >= since_s:
                self._take(step, save)

    def recall(self, lines: Sequence[Line], aside: Iterable[int]) -> None:
        """Restore an earlier orchestrator's state from the journal; `aside` was set aside before the last attempt."""
        last_attempt = max((n for n, line in enumerate(lines) if isinstance(line, AttemptLine)), default=None)
        for number, line in enumerate(lines):
            match line:
                case IncidentLine():
                    for since_s, until_s in line.fences or ():
                        self.fence(since_s, until_s)
                        self._forget_written(since_s, until_s)
                case AttemptLine():
                    self.begin_attempt()
                    if number == last_attempt:
                        self.set_aside(aside)
                case CheckpointLine(path=str()):
                    self._learn([_verified(line)])
                case _:
                    pass

    def set_aside(self, steps: Iterable[int]) -> None:
        """Treat these checkpoints, and no others, as unreadable until they are written again."""
        self._set_aside = {
            step: self._whole[step].identity if step in self._whole else self._set_aside.get(step)
            for step in steps
        }

    @property
    def avoided(self) -> list[int]:
        """The steps that are set aside or ignored."""
        return sorted({*self._set_aside, *self._ignored})

    @property
    def unreadable(self) -> list[int]:
        """The steps that are set aside."""
        return sorted(self._set_aside)

    @property
    def newest(self) -> tuple[int, str] | None:
        """Step and path of the highest checkpoint, if it can be resumed from where it is."""
        step = max(self._whole, default=None)
        if step is None or step in self.avoided:
            return None
        path = self._whole[step].path
        return None if _is_copy(path) else (step, path)

    @property
    def verified(self) -> tuple[int, ...]:
        """The steps that can be resumed from."""
        return tuple(
            step
            for step, save in sorted(self._whole.items())
            if step not in self._set_aside or self._set_aside[step] != save.identity
        )

    @property
    def are_counted(self) -> bool:
        """Whether no known checkpoint states its step, so that all steps are the numbers of versions."""
        return bool(self._is_counted)

    @property
    def noun(self) -> str:
        """What the number of a checkpoint is, in texts."""
        return save_noun(counted=self._is_counted)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of complete checkpoints, also those that are set aside."""
        return tuple(sorted(self._whole))

    @property
    def has_ever_saved(self) -> bool:
        """Whether a checkpoint has counted, also one that is gone."""
        return bool(self._reported)

    @property
    def marks(self) -> list[dict[str, Any]]:
        """Verified checkpoints in the form that agents expect, by step; incomplete records are left out."""
        return [
            {"step": step, **save._asdict()} for step, save in sorted(self._whole.items()) if None not in save
        ]

    def why_not(self, step: int, why_not: Mapping[str, str]) -> str:
        """Return why an attempt cannot start from the decided step; `why_not` is the agent's answer, by name."""
        if step in self.avoided:
            return f"{self.noun} {step} is set aside"
        if step not in self._reported:
            return f"no checkpoint of {self.noun} {step} is known"
        path, _ = self._reported[step]
        if self._step_at[path] != step:
            return f"{PurePath(path).name} is of {self.noun} {self._step_at[path]} now"
        reasons = (f"{name}: {why}" for name, why in why_not.items() if path.endswith(f"/{name}"))
        return next(reasons, f"{PurePath(path).name} is no longer there")

    def earlier(self, than_s: float) -> tuple[int, ...]:
        """Return the steps that were written before a time, since the epoch, or that are ignored."""
        old = [step for step, save in self._whole.items() if save.mtime is not None and save.mtime < than_s]
        return tuple(sorted({*old, *self._ignored}))

    def facts(self) -> dict[str, Any]:
        """Return an incident's fields about checkpoints."""
        verified = self.verified
        return {
            "step": max(verified, default=None),
            "seen_step": self._seen_step,
            "baseline_step": self._baseline_step,
            "verified": verified,
            "counted": self._is_counted or None,
        }
