"""The progress of phases, as progress artifacts: noted at each step, published periodically."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prefect_ft.observe import PhaseEnded, PhaseStarted, StepReached
from prefect_ft.prefect_edge.reporting.markdown import as_text

PROGRESS_S = 10.0
"""The shortest interval between two updates of a progress artifact."""


class Progress:
    """The steps of phases that have a target. Noted by the supervisor's thread, published by the reporter's."""

    def __init__(self) -> None:
        self._targets: dict[str, int] = {}
        self._steps: dict[str, int] = {}
        self._given: dict[str, int] = {}
        self._given_s = 0.0

    def begin(self, fact: PhaseStarted | PhaseEnded) -> None:
        """Note a phase's target."""
        if isinstance(fact, PhaseStarted) and fact.target_step:
            self._targets[fact.phase] = fact.target_step

    def reached(self, fact: StepReached) -> None:
        """Note a step; after a restart it may be lower than before."""
        self._steps[fact.phase] = fact.step

    def due(self, now_s: float, *, is_last: bool) -> Iterator[tuple[str, float, str]]:
        """Return what has changed, as key, per cent and description; nothing if the last update is recent."""
        if now_s - self._given_s < PROGRESS_S and not is_last:
            return
        for phase, target in list(self._targets.items()):
            step = self._steps.get(phase)
            if step is not None and step != self._given.get(phase):
                yield (
                    f"steps-{_slug(phase)}",
                    min(100.0 * step / target, 100.0),
                    f"{as_text(phase)}: step {step} of {target}",
                )
                self._given[phase] = step
                self._given_s = now_s


def _slug(name: str) -> str:
    """Return a name as an artifact's key may have it."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "phase"
