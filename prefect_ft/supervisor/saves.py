"""What is known of a phase's checkpoints: a fold over the agents' reports. Looks at no file itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prefect_ft.supervisor.link import Event

Identity = tuple[str, float]
"""Path and time of writing: who reports the same again has not verified anything anew."""


class Saves:
    """The verified checkpoints of a phase, by step, and what the attempt that runs has added."""

    def __init__(self) -> None:
        self._whole: dict[int, Identity] = {}
        self._set_aside: dict[int, Identity | None] = {}
        self._highest_step: int | None = None
        self._seen_step: int | None = None
        self._baseline_step: int | None = None

    def begin_attempt(self) -> None:
        """Make what was verified so far the past: it is not the progress of what begins."""
        self._baseline_step, self._seen_step = self._highest_step, None

    def report(self, event: Event) -> None:
        """Learn what an agent has verified; what lies beyond its last good one is good no more."""
        last = event["last"]
        for item in event["new"]:
            self._whole[item["step"]] = (item["path"], item["mtime"])
            self._highest_step = max(item["step"], self._highest_step or 0)
            self._seen_step = max(item["step"], self._seen_step or 0)
        self._whole = {
            step: identity for step, identity in self._whole.items() if last is not None and step <= last
        }

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
