"""What is known of a phase's checkpoints: a fold over the agents' reports. Looks at no file itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prefect_ft.supervisor.link import Event

Identity = tuple[str, float | None]
"""Path and time of writing: who reports the same again has not verified anything anew."""


def _identity(item: Mapping[str, Any]) -> Identity:
    return item["path"], item["mtime"]


class Saves:
    """The verified checkpoints of a phase, by step, and what the attempt that runs has added."""

    def __init__(self) -> None:
        self._whole: dict[int, Identity] = {}
        self._told: dict[int, Identity] = {}
        """All that has ever been reported, good still or not."""
        self._set_aside: dict[int, Identity | None] = {}
        self.newest_s = 0.0
        """When the newest one was written that was not known before it was reported, since the epoch."""
        self._highest_step: int | None = None
        self._seen_step: int | None = None
        self._baseline_step: int | None = None

    def begin_attempt(self) -> None:
        """Make what was verified so far the past: it is not the progress of what begins."""
        self._baseline_step, self._seen_step = self._highest_step, None

    def report(self, event: Event) -> list[Mapping[str, Any]]:
        """Learn what an agent has verified; what lies beyond its last good one is good no more.

        Gives what was not known: another worker's agent, or another life's, tells the same again.
        """
        last = event["last"]
        new = [item for item in event["new"] if self._told.get(item["step"]) != _identity(item)]
        self.newest_s = max([self.newest_s, *(item["mtime"] for item in new if item["mtime"] is not None)])
        for item in event["new"]:
            self._whole[item["step"]] = self._told[item["step"]] = _identity(item)
            self._highest_step = max(item["step"], self._highest_step or 0)
            self._seen_step = max(item["step"], self._seen_step or 0)
        self._whole = {
            step: identity for step, identity in self._whole.items() if last is not None and step <= last
        }
        return new

    def recall(self, lines: Sequence[Mapping[str, Any]], aside: Iterable[int]) -> None:
        """Learn from a journal what an earlier life knew; `aside` was set aside before the last attempt."""
        last_attempt = max((n for n, line in enumerate(lines) if line["type"] == "attempt"), default=None)
        for number, line in enumerate(lines):
            if line["type"] == "attempt":
                self.begin_attempt()
                if number == last_attempt:
                    self.set_aside(aside)
            elif line["type"] == "checkpoint":
                last = max(line["step"], self._highest_step or 0)
                self.report({"new": [{"mtime": None, **line}], "last": last})

    def set_aside(self, steps: Iterable[int]) -> None:
        """Take these checkpoints, and no others, for unreadable, until they are written anew."""
        self._set_aside = {step: self._whole.get(step, self._set_aside.get(step)) for step in steps}

    @property
    def avoided(self) -> list[int]:
        """The steps of those set aside."""
        return sorted(self._set_aside)

    @property
    def verified(self) -> tuple[int, ...]:
        """The steps that can be resumed from."""
        return tuple(
            step
            for step, identity in sorted(self._whole.items())
            if step not in self._set_aside or self._set_aside[step] != identity
        )

    def facts(self) -> dict[str, Any]:
        """Give an incident's fields about checkpoints."""
        verified = self.verified
        return {
            "step": max(verified, default=None),
            "seen_step": self._seen_step,
            "baseline_step": self._baseline_step,
            "verified": verified,
        }
